#pragma once
/// The engine's own threads, and how they stay unnoticed by the program.
///
/// They are threads of the C library, because setuid() and its kin have to reach them. But the
/// program did not make them. So they block all signals, leave the program's scheduling as it is,
/// and do not keep the process alive when the program's own threads have ended. They end before a
/// call that asks how many threads there are, or that takes rights from the calling thread only
/// (Node::retire()).

#include <cstdint>

namespace sidestep::engine {

/// Starts a detached engine thread with every signal blocked, so that the program's handlers run on
/// the program's own threads only. Returns when the thread runs.
bool start_engine_thread(void* (*entry)(void*), void* argument, const char* name) noexcept;
/// Returns how many engine threads this process has.
unsigned engine_threads() noexcept;
/// Called in the child of a fork, which has none.
void no_engine_threads() noexcept;

/// Asks all engine threads to end. Each one notices when it is woken.
void ask_engine_threads_to_end() noexcept;
bool engine_threads_are_to_end() noexcept;
/// For an engine thread that nothing else wakes. Returns false if the thread has to end.
bool sleep_unless_to_end(uint64_t nanoseconds) noexcept;
/// Waits until the kernel no longer knows any of them. Returns false if one of them has not ended
/// within ten seconds.
bool await_end_of_engine_threads() noexcept;

/// While it lives, no other thread is starting an engine thread. For code that copies this process
/// past the C library, which would otherwise not find its lists whole in the copy.
class NoThreadStarts {
 public:
  NoThreadStarts() noexcept;
  ~NoThreadStarts();
  NoThreadStarts(const NoThreadStarts&) = delete;
  /// Called in the copy.
  static void forget_after_fork() noexcept;
};

/// True if the program has at most one thread. Its first thread counts even after it has ended. One
/// system call.
bool only_engine_has_other_threads() noexcept;
/// True if all threads of the program have ended, perhaps past the C library: by a sandbox's
/// filter. One system call, or four if the first one does not settle it.
bool only_engine_threads_are_left() noexcept;
/// Ends the process by the signal that ended its first thread, or by a sandbox's signal, if there
/// was one.
void die_as_program_threads() noexcept;
/// Called by an engine thread before the process ends in that way. Set once, before any starts.
extern void (*on_end_of_program_threads)() noexcept;

/// Asks the scheduler for short slices for the calling engine thread: see the definition.
void ask_for_short_slices() noexcept;

}  // namespace sidestep::engine

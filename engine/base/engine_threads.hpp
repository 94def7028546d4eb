#pragma once
/// The engine's own threads, and how the program does not notice that it has them.
///
/// They are threads of the C library, because setuid() and its kin have to reach them. But the
/// program has not made them: they block all signals, leave its scheduling as it is, don't keep its
/// process alive when its own threads have ended, and end before a call that asks how many threads
/// there are, or that takes rights from the calling thread only (Node::retire()).

#include <cstdint>

namespace sidestep::engine {

/// Starts a detached engine thread with every signal blocked: the program's handlers run on its own
/// threads only. Returns when it runs.
bool start_engine_thread(void* (*entry)(void*), void* argument, const char* name) noexcept;
/// How many of them there are in this process.
unsigned engine_threads() noexcept;
/// In the child of a fork.
void no_engine_threads() noexcept;

/// They are to end: each looks when it has been woken.
void ask_engine_threads_to_end() noexcept;
bool engine_threads_are_to_end() noexcept;
/// For an engine thread that is woken by nothing else. False: it is to end.
bool sleep_unless_to_end(uint64_t nanoseconds) noexcept;
/// Until the kernel knows none of them any more. False: ten seconds were not enough for one.
bool await_end_of_engine_threads() noexcept;

/// While it lives, no engine thread is being started by another thread. For whoever copies this
/// process past the C library, which would not find its lists whole in the copy.
class NoThreadStarts {
 public:
  NoThreadStarts() noexcept;
  ~NoThreadStarts();
  NoThreadStarts(const NoThreadStarts&) = delete;
  /// In the copy.
  static void forget_after_fork() noexcept;
};

/// Whether the program has one thread at most, or none but its first, which has ended. One system
/// call.
bool only_engine_has_other_threads() noexcept;
/// Whether the program's threads have all ended, past the C library perhaps: by a sandbox's filter.
/// Two or three system calls.
bool only_engine_threads_are_left() noexcept;
/// Ends the process by the signal that has ended its first thread, or by a sandbox's, if one has.
void die_as_program_threads() noexcept;
/// What an engine thread does before the process ends in that way; set once, before any starts.
extern void (*on_end_of_program_threads)() noexcept;

/// For the calling engine thread: see the definition.
void ask_for_short_slices() noexcept;

}  // namespace sidestep::engine

#pragma once
/// Signals, treated as a blocking system call would treat them.
///
/// When a handler runs, a blocking call may not be inside the kernel: it may still be polling, or
/// be about to sleep. So a handler of the library's own runs the program's handlers and counts them
/// (on_signal in shim_signal.cpp). A call looks at the counts before it sleeps, and keeps all
/// signals blocked from that look until the sleep.
#include <atomic>
#include <csignal>
#include <cstdint>

#include "engine/base/held_locks.hpp"

namespace sidestep::preload {

/// Counts the handlers that have run on this thread, or that wait for the end of a call. Includes
/// only handlers that were installed through the shim, and not those for faults (SIGSEGV and the
/// like), which interrupt nothing.
struct HandlersRun {
  unsigned all = 0;
  unsigned without_restart = 0;  // those of them that were installed without SA_RESTART
};
/// The frame of the innermost handler that runs on this thread, or that ran and was left by
/// longjmp().
extern constinit thread_local const void* handler_frame __attribute__((tls_model("initial-exec")));
/// True if the caller runs in a handler that is counted.
bool runs_in_handler() noexcept;
extern constinit thread_local HandlersRun handlers_run __attribute__((tls_model("initial-exec")));
/// True if the program's handlers are counted, because there is at least one.
bool counts_handlers() noexcept;
void start_counting_handlers() noexcept;

/// The errno of a sleeping call that has to begin anew once the handler that waits for its end has
/// run. It is the kernel's ERESTARTSYS, which no program sees either.
inline constexpr int kBeginAnew = 512;

/// True if a handler waits for the end of the call that the thread is inside.
inline bool handler_waits() noexcept {
  // False while a lock is held: then the caller runs in a handler that could not wait and has
  // interrupted the lock holder, and the waiting handler has to wait longer.
  return engine::held_locks.awaited && engine::held_locks.count == 0;
}

/// Tells what has happened since this object was made at the beginning of a blocking call.
class Interruptions {
 public:
  /// True if any handler has run or waits. For calls that are never restarted: those with a time
  /// limit, and poll(2) and its kin.
  bool any() const noexcept { return handlers_run.all != before_.all || handler_waits(); }
  bool without_restart() const noexcept {
    return handlers_run.without_restart != before_.without_restart;
  }

 private:
  HandlersRun before_ = handlers_run;
};

/// Counts the calling thread in `count` until count_out(). Used around a sleep in the kernel. A
/// thread can be in one count at a time. If a handler leaves the sleep by longjmp(), the thread
/// stays counted until it next sleeps this way, or ends; if the thread is canceled there, until it
/// has ended.
void count_in(std::atomic<int>& count) noexcept;
void count_out() noexcept;

/// Blocks all signals except those of faults while it lives: for a last look before a sleep, which
/// the caller gives mask().
class SignalGate {
 public:
  /// `mask`: the mask that the program wants during the sleep; null: the thread's mask.
  explicit SignalGate(const sigset_t* mask = nullptr) noexcept;
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  const sigset_t* mask() const noexcept { return mask_; }

 private:
  bool closed_ = false;
  uint64_t before_ = 0;  // the kernel's sigset_t, which is the beginning of libc's
  const sigset_t* mask_;
};

/// Has the connection manager's thread do `work`, and waits for it for at most `milliseconds`. For
/// signal handlers, which may have interrupted the holder of any lock, malloc's included. Returns
/// false if the work is not done yet, or if this process has no such thread.
bool run_on_manager(void (*work)() noexcept, int milliseconds) noexcept;
/// Called in the child of a fork: the work in progress was the parent's.
void forget_work_after_fork() noexcept;
/// Does `work` on the calling thread if no handler runs there; otherwise like run_on_manager().
void run_outside_handler(void (*work)() noexcept, int milliseconds) noexcept;

/// True if every handler that is installed now was installed with SA_RESTART: then an interrupted
/// call goes on. Used when the interrupting handler is not counted because it was installed past
/// the shim. If there are handlers of both kinds, nobody can know which one ran; the call then
/// reports EINTR, as programs that install such handlers expect. Makes 64 system calls, but only
/// after an interruption.
bool all_handlers_restart() noexcept;

/// Raises SIGPIPE for the calling thread, as a write to a closed socket does.
void raise_sigpipe() noexcept;

}  // namespace sidestep::preload

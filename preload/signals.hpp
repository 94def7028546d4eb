#pragma once
/// Signals as a blocking system call would treat them.
///
/// A call that blocks may not be inside the kernel when a handler runs: it polls first, or is about
/// to sleep. So the program's handlers are run by one of the library's own, which counts (on_signal
/// in shim_signal.cpp); a call looks at the counts before it sleeps, with all signals blocked from
/// the look to the sleep.
#include <atomic>
#include <csignal>
#include <cstdint>

#include "engine/base/held_locks.hpp"

namespace sidestep::preload {

/// Handlers that have run on this thread, or wait for the end of a call. Only of handlers that were
/// installed through the shim, and not of those for faults (SIGSEGV and its like), which interrupt
/// nothing.
struct HandlersRun {
  unsigned all = 0;
  unsigned without_restart = 0;  // of those, installed without SA_RESTART
};
/// The frame of the innermost handler that runs on this thread, or did and was left by longjmp().
extern constinit thread_local const void* handler_frame __attribute__((tls_model("initial-exec")));
/// Whether the caller runs in one, of those that are counted.
bool runs_in_handler() noexcept;
extern constinit thread_local HandlersRun handlers_run __attribute__((tls_model("initial-exec")));
/// Handlers of the program are counted: there is one.
bool counts_handlers() noexcept;
void start_counting_handlers() noexcept;

/// What a call that sleeps returns when it is to begin anew, once the handler has run that waits
/// for its end: ERESTARTSYS of the kernel, which no program sees either.
inline constexpr int kBeginAnew = 512;

/// A handler waits for the end of the call that the thread is inside.
inline bool handler_waits() noexcept {
  // Not where it has to wait for longer: this is a handler that could not, and has interrupted the
  // holder of a lock.
  return engine::held_locks.awaited && engine::held_locks.count == 0;
}

/// What has happened since it was made, at the beginning of a blocking call.
class Interruptions {
 public:
  /// Anything: a call with a time limit, poll(2) and its kin are never restarted.
  bool any() const noexcept { return handlers_run.all != before_.all || handler_waits(); }
  bool without_restart() const noexcept {
    return handlers_run.without_restart != before_.without_restart;
  }

 private:
  HandlersRun before_ = handlers_run;
};

/// Counts the calling thread in `count`, until count_out(): around a sleep in the kernel. One count
/// at a time. If a handler leaves the sleep by longjmp(), the thread stays counted until it sleeps
/// so again, or ends; if it is cancelled there, until it has ended.
void count_in(std::atomic<int>& count) noexcept;
void count_out() noexcept;

/// Blocks all signals but those of faults while it lives, for a last look before a sleep that is
/// given mask().
class SignalGate {
 public:
  /// `mask`: the program's own for the sleep; null: the thread's.
  explicit SignalGate(const sigset_t* mask = nullptr) noexcept;
  ~SignalGate();
  SignalGate(const SignalGate&) = delete;
  const sigset_t* mask() const noexcept { return mask_; }

 private:
  bool closed_ = false;
  uint64_t before_ = 0;  // the kernel's sigset_t, of which libc's is the beginning
  const sigset_t* mask_;
};

/// Has the connection manager's thread do `work`, and waits so long for it at most. For handlers,
/// which may have interrupted a holder of any lock, malloc's included. False: it is not done yet,
/// or there is no such thread in this process.
bool run_on_manager(void (*work)() noexcept, int milliseconds) noexcept;
/// In the child of a fork: what was being done was the parent's.
void forget_work_after_fork() noexcept;
/// `work`, by the caller itself where no handler runs; else as run_on_manager().
void run_outside_handler(void (*work)() noexcept, int milliseconds) noexcept;

/// Whether every handler that is installed now was installed with SA_RESTART: then an interrupted
/// call goes on. For an interruption by a handler that is not counted, because it was installed
/// past the shim: with handlers of both kinds it can't be known which one ran, and the call reports
/// EINTR, as programs that install such handlers expect. 64 system calls, after an interruption
/// only.
bool all_handlers_restart() noexcept;

/// SIGPIPE for the calling thread, as a write to a closed socket raises it.
void raise_sigpipe() noexcept;

}  // namespace sidestep::preload

#pragma once
/// How many of the library's locks the calling thread holds.
///
/// A handler of a signal that interrupts a holder may do anything: call into the library again,
/// leave by longjmp(), fork, end the process. So the shim lets the program's handlers wait for the
/// moment in which none is held; a lock is held for less than a microsecond as a rule, and never
/// while sleeping. The handlers of faults (SIGSEGV and its like) can't wait: see
/// Mutex::lock_unless_stuck().
///
/// Async-signal-safe. Each thread has its own.
#include <atomic>

namespace sidestep::engine {

struct HeldLocks {
  volatile unsigned count = 0;
  /// A handler waits: on_last_unlock() is called when the count gets to 0.
  volatile bool awaited = false;
};
extern constinit thread_local HeldLocks held_locks __attribute__((tls_model("initial-exec")));

/// Set once, before anything waits. It looks after `awaited` itself.
extern void (*on_last_unlock)() noexcept;

/// Before a lock is taken, or tried.
inline void enter_lock() noexcept {
  held_locks.count = held_locks.count + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// It has been let go of, or was not had.
inline void leave_lock() noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const unsigned left = held_locks.count - 1;
  held_locks.count = left;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (left == 0 && held_locks.awaited) [[unlikely]]
    on_last_unlock();
}

}  // namespace sidestep::engine

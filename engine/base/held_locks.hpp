#pragma once
/// How many of the library's locks the calling thread holds, and how many calls on streams it is
/// in.
///
/// A signal handler that interrupts a holder may do anything: call into the library again, leave by
/// longjmp(), fork, or end the process. So the shim makes the program's handlers wait until the
/// thread holds no lock and is in no such call. As a rule a lock is held for less than a
/// microsecond, and it is never held while sleeping. A call that sleeps on a stream ends when a
/// handler waits: it fails with EINTR, or starts over after the handler has run. Handlers of faults
/// (SIGSEGV and its like) cannot wait: see Mutex::lock_unless_stuck().
///
/// Async-signal-safe. Each thread has its own counts.
#include <atomic>

#include "engine/base/cancellation.hpp"

namespace sidestep::engine {

struct HeldLocks {
  volatile unsigned count = 0;
  volatile unsigned calls = 0;
  /// True while a handler waits: on_last_unlock() is called when one of the two counts reaches 0.
  volatile bool awaited = false;
};
extern constinit thread_local HeldLocks held_locks __attribute__((tls_model("initial-exec")));

/// Set once, before any handler waits. The function itself resets `awaited`, and checks that the
/// other count is 0 too.
extern void (*on_last_unlock)() noexcept;

/// Called before a lock is taken or tried.
[[gnu::always_inline]] inline void enter_lock() noexcept {
  held_locks.count = held_locks.count + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// Lowers `depth`, one of the counts of held_locks. Always inline: each poll and each lock calls
/// it.
[[gnu::always_inline]] inline void go_up_from(volatile unsigned& depth) noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const unsigned left = depth - 1;
  depth = left;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (left == 0 && held_locks.awaited) [[unlikely]]
    on_last_unlock();
}

/// Called after a lock has been released, or could not be taken.
[[gnu::always_inline]] inline void leave_lock() noexcept {
  go_up_from(held_locks.count);
}

/// While it lives, the thread is inside a call on a stream and cannot be canceled. Create it before
/// anything that a longjmp() out of a handler must not skip, but not around a call that itself
/// sleeps in the kernel. errno survives the handlers.
class HandlersWait {
 public:
  /// Does nothing if `on` is false.
  explicit HandlersWait(bool on = true) noexcept : on_(on) {
    if (!on) return;
    held_locks.calls = held_locks.calls + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    not_cancelled_.enter(held_locks.calls + held_locks.count == 1);
  }
  // The thread cannot be canceled in the handlers that run here either: these frames cannot be
  // unwound.
  [[gnu::always_inline]] ~HandlersWait() {
    if (on_) go_up_from(held_locks.calls);
  }
  HandlersWait(const HandlersWait&) = delete;

 private:
  const bool on_;
  NotCancelled not_cancelled_;
};

}  // namespace sidestep::engine

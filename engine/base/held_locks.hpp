#pragma once
/// How many of the library's locks the calling thread holds, and calls on streams it is inside.
///
/// A handler of a signal that interrupts a holder may do anything: call into the library again,
/// leave by longjmp(), fork, end the process. So the shim lets the program's handlers wait for the
/// moment in which there is none; a lock is held for less than a microsecond as a rule, and never
/// while sleeping. A call that sleeps on a stream ends when a handler waits, with EINTR, or begins
/// anew when it has run. The handlers of faults (SIGSEGV and its like) can't wait: see
/// Mutex::lock_unless_stuck().
///
/// Async-signal-safe. Each thread has its own.
#include <atomic>

#include "engine/base/cancellation.hpp"

namespace sidestep::engine {

struct HeldLocks {
  volatile unsigned count = 0;
  volatile unsigned calls = 0;
  /// A handler waits: on_last_unlock() is called when one of the two gets to 0.
  volatile bool awaited = false;
};
extern constinit thread_local HeldLocks held_locks __attribute__((tls_model("initial-exec")));

/// Set once, before anything waits. It looks after `awaited` itself, and whether the other is 0
/// too.
extern void (*on_last_unlock)() noexcept;

/// Before a lock is taken, or tried.
[[gnu::always_inline]] inline void enter_lock() noexcept {
  held_locks.count = held_locks.count + 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// `depth`: one of the counts of held_locks. Always inline: each poll and each lock has one.
[[gnu::always_inline]] inline void go_up_from(volatile unsigned& depth) noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const unsigned left = depth - 1;
  depth = left;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (left == 0 && held_locks.awaited) [[unlikely]]
    on_last_unlock();
}

/// It has been let go of, or was not had.
[[gnu::always_inline]] inline void leave_lock() noexcept {
  go_up_from(held_locks.count);
}

/// While it lives, the thread is inside a call on a stream, and not cancelled. To be made before
/// anything that a longjmp() out of a handler must not skip, and not around a call that sleeps in
/// the kernel by itself. errno outlives the handlers.
class HandlersWait {
 public:
  /// Not `on`: it does nothing.
  explicit HandlersWait(bool on = true) noexcept : on_(on) {
    if (!on) return;
    held_locks.calls = held_locks.calls + 1;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    not_cancelled_.enter(held_locks.calls + held_locks.count == 1);
  }
  // Nor is it cancelled in the handlers that run here: in frames that can't be unwound.
  ~HandlersWait() {
    if (on_) go_up_from(held_locks.calls);
  }
  HandlersWait(const HandlersWait&) = delete;

 private:
  const bool on_;
  NotCancelled not_cancelled_;
};

}  // namespace sidestep::engine

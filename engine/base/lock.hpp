#pragma once
/// A four-byte mutex on a futex.
///
/// States: 0 free, 1 held, 2 held and somebody may sleep on it. lock() takes 0 -> 1 with acquire,
/// which pairs with the release in unlock(). unlock() is an exchange and so a full barrier on x86:
/// code that leaves a request for "whoever holds the lock" relies on that (see Stream).
/// The standard mutex is not used because it is ten times the size and cannot be reset after fork.
#include <atomic>

#include "engine/base/clock.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {

class Mutex {
 public:
  // Always inline: a call would take as long as these functions do.
  [[gnu::always_inline]] bool try_lock() noexcept {
    enter_lock();
    if (take()) return true;
    leave_lock();
    return false;
  }

  [[gnu::always_inline]] void lock() noexcept {
    enter_lock();
    if (!take()) lock_slow();
  }

  /// For functions that a signal handler may call (fork, exec, _exit): the code that the handler
  /// interrupted may hold the lock, and would never release it. Returns false if this thread holds
  /// some lock and could not take this one within 100 ms, thousands of times longer than another
  /// thread needs it.
  bool lock_unless_stuck() noexcept {
    if (held_locks.count == 0) {
      lock();
      return true;
    }
    for (uint64_t start = 0; !try_lock(); sys::sched_yield()) {
      const uint64_t now = now_ns();
      if (start == 0) start = now;
      if (now - start > 100'000'000) return false;
    }
    return true;
  }

  /// Like lock(), but returns false if `needless()` holds before the lock is taken. It is checked
  /// whenever the lock changes hands, so that a crowd that waits for the same thing leaves
  /// together. With lock(), each of them would wait for its turn, behind all threads that merely
  /// come by.
  template <typename Needless>
  bool lock_unless(Needless needless) noexcept {
    enter_lock();
    if (take()) return true;
    for (int i = 0; i < 64; ++i) {
      cpu_relax();
      if (needless()) {
        leave_lock();
        return false;
      }
      if (!is_locked() && take()) return true;
    }
    // The sleep has a limit: what makes the lock needless may happen without it.
    constexpr timespec kMoment{0, 20'000'000};
    while (state_.exchange(2, std::memory_order_seq_cst) != 0) {
      sys::futex_wait(&state_, 2, &kMoment);
      if (!needless()) {
        if (take_after_sleep()) return true;
        continue;
      }
      // Passes the wake-up on to the next sleeper, of which the lock holder may not know.
      sys::futex_wake(&state_, 1);
      leave_lock();
      return false;
    }
    return true;
  }

  [[gnu::always_inline]] void unlock() noexcept {
    if (state_.exchange(0, std::memory_order_seq_cst) == 2) sys::futex_wake(&state_, 1);
    leave_lock();
  }

  bool is_locked() const noexcept { return state_.load(std::memory_order_relaxed) != 0; }

  /// Only in the child of a fork, where the threads that held it no longer exist.
  void reset_after_fork() noexcept { state_.store(0, std::memory_order_relaxed); }

 private:
  bool take() noexcept {
    uint32_t expected = 0;
    return state_.compare_exchange_strong(expected, 1, std::memory_order_seq_cst,
                                          std::memory_order_relaxed);
  }

  /// Like take(), for a thread that has slept: others may sleep as well.
  bool take_contended() noexcept {
    uint32_t expected = 0;
    return state_.compare_exchange_strong(expected, 2, std::memory_order_seq_cst,
                                          std::memory_order_relaxed);
  }
  /// Called after a sleep. A single try would lose against running threads that take the lock again
  /// and again, and the next sleep would be behind all other sleepers.
  bool take_after_sleep() noexcept {
    for (int i = 0; i < 64; ++i) {
      if (!is_locked() && take_contended()) return true;
      cpu_relax();
    }
    return false;
  }

  void lock_slow() noexcept {
    // A critical section is a few hundred nanoseconds: a short spin usually saves two system calls.
    for (int i = 0; i < 64; ++i) {
      cpu_relax();
      if (!is_locked() && take()) return;
    }
    while (state_.exchange(2, std::memory_order_seq_cst) != 0) {
      sys::futex_wait(&state_, 2, nullptr);
      if (take_after_sleep()) return;
    }
  }

  std::atomic<uint32_t> state_{0};
};

/// Takes a lock by lock_unless_stuck(), and releases it at the end of the scope. If the lock could
/// not be taken, the guard is false and releases nothing.
template <typename Lock>
class GuardUnlessStuck {
 public:
  explicit GuardUnlessStuck(Lock& lock) noexcept
      : lock_(lock.lock_unless_stuck() ? &lock : nullptr) {}
  ~GuardUnlessStuck() {
    if (lock_ != nullptr) lock_->unlock();
  }
  GuardUnlessStuck(const GuardUnlessStuck&) = delete;
  explicit operator bool() const noexcept { return lock_ != nullptr; }

 private:
  Lock* const lock_;
};

}  // namespace sidestep::engine

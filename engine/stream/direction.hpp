#pragma once
/// What the two directions of a stream have in common: a lock, and the work that is left to others.
///
/// The lock is held for one non-blocking step, never while waiting. A thread that has to send a
/// fragment but cannot take the lock, or finds the ring full, defers that; whoever unlocks looks
/// for it (unlock is a full barrier), and the progress code tries again.
#include <atomic>
#include <cstdint>

#include "engine/base/lock.hpp"

namespace sidestep::engine {

class Stream;

class Direction {
 public:
  Direction(const Direction&) = delete;

  Mutex& mutex() noexcept { return lock_; }
  /// Unlocks, then does what others have deferred.
  [[gnu::always_inline]] void unlock() noexcept {
    lock_.unlock();
    // relaxed: unlock() was a full barrier, and so is the fetch_or in defer() before its try_lock.
    if (deferred_.load(std::memory_order_relaxed) != 0) run_deferred();
  }

 protected:
  /// `in_use`: the direction counts as used, because nobody will report when the program uses it.
  Direction(Stream& stream, bool in_use) noexcept : stream_(stream), used_(in_use) {}
  ~Direction() = default;

  /// `what`: bits that the derived class defines. Any thread.
  void defer(uint32_t what) noexcept;
  /// Tries to do what is deferred, in both directions.
  void run_deferred() noexcept;
  /// Tries to do what is deferred in this one. `run(bits)` does it under the lock and returns what
  /// is left; `tries_again()` is asked if anything is. False if something is left (lock held or
  /// ring full).
  template <typename Run, typename TriesAgain>
  bool run_own_deferred(Run run, TriesAgain tries_again) noexcept {
    // Whoever adds a bit and finds the lock held leaves it to the holder, who looks again after
    // unlock().
    while (deferred_.load(std::memory_order_seq_cst) != 0 && lock_.try_lock()) {
      const uint32_t bits = deferred_.exchange(0, std::memory_order_acq_rel);
      const uint32_t left = run(bits);
      if (left != 0) deferred_.fetch_or(left, std::memory_order_seq_cst);
      lock_.unlock();
      if (left == 0) continue;
      note_left();
      if (!tries_again()) break;
    }
    return deferred_.load(std::memory_order_relaxed) == 0;
  }

  alignas(64) Mutex lock_;
  Stream& stream_;
  std::atomic<uint32_t> deferred_{0};
  std::atomic<bool> used_;  // by the program; release pairs with the exchange in run_own_deferred()

 private:
  /// Has the progress code try again.
  void note_left() noexcept;
};

}  // namespace sidestep::engine

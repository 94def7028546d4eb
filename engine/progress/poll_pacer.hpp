#pragma once
/// Moderates polling as NICs moderate interrupts, and for the same reason.
///
/// A receiver that polls right behind a sender of many small messages takes every cache line away
/// while the sender is still filling it: each side then spends more time waiting for the other's
/// cache than working. When receives come faster than kFast, polls are kept kPause apart, which
/// lets the sender fill whole lines undisturbed; the next poll finds a batch. A poll that finds
/// less than that ends the pacing. So a single message after a burst is late by one pause at most,
/// and request-response traffic, which never reaches that rate, is not delayed at all.
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"

namespace sidestep::engine {

class PollPacer {
 public:
  /// Called before a poll by any thread, with no lock held.
  void wait_turn() const noexcept {
    if (!is_paced()) return;
    // All of this is relaxed: a pause more or less does no harm.
    const uint64_t last = last_poll_.load(std::memory_order_relaxed);
    while (now_ns() - last < kPause) cpu_relax();
  }

  /// Called after a poll that found `count` work requests. One thread at a time (the lane's lock).
  void polled(size_t count) noexcept {
    counted_ += count;
    if (is_paced()) {
      last_poll_.store(now_ns(), std::memory_order_relaxed);
      if (count < kWorthIt) {
        paced_.store(false, std::memory_order_relaxed);
        counted_ = 0;
        window_start_ = 0;  // long ago: the next window decides nothing and only starts the clock
      }
      return;
    }
    if (counted_ < kWindow) return;
    const uint64_t now = now_ns();
    if (now - window_start_ < kWindow * kFast) {
      last_poll_.store(now, std::memory_order_relaxed);
      paced_.store(true, std::memory_order_relaxed);
    }
    window_start_ = now;
    counted_ = 0;
  }

  bool is_paced() const noexcept { return paced_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kPause = 1500;  // nanoseconds
  static constexpr uint64_t kFast = 200;    // nanoseconds between receives; a round trip takes more
  static constexpr uint64_t kWindow = 64;   // receives over which the rate is taken
  static constexpr size_t kWorthIt = 4;

  std::atomic<bool> paced_{false};
  std::atomic<uint64_t> last_poll_{0};
  uint64_t counted_ = 0;
  uint64_t window_start_ = 0;
};

}  // namespace sidestep::engine

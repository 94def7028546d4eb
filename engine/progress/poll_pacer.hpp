#pragma once
/// Moderation of polling: as NICs moderate interrupts, for the same reason.
///
/// A receiver that polls right behind a sender of many small messages takes every cache line from
/// it while it is still being filled: each side then waits for the other's cache more than it
/// works. When receives come faster than kFast, polls are kept kPause apart, which lets the sender
/// fill whole lines undisturbed; the next poll finds a batch. A poll that finds less ends it, so
/// that a single message after a burst is late by one pause at most, and request and response,
/// which never reach that rate, by nothing.
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"

namespace sidestep::engine {

class PollPacer {
 public:
  /// Before a poll; any thread, no lock held.
  void wait_turn() const noexcept {
    if (!is_paced()) return;
    // Relaxed, all of it: a pause more or less does no harm.
    const uint64_t last = last_poll_.load(std::memory_order_relaxed);
    while (now_ns() - last < kPause) cpu_relax();
  }

  /// After a poll that found `count` work requests. One thread at a time (the lane's lock).
  void polled(size_t count) noexcept {
    counted_ += count;
    if (is_paced()) {
      last_poll_.store(now_ns(), std::memory_order_relaxed);
      if (count < kWorthIt) {
        paced_.store(false, std::memory_order_relaxed);
        counted_ = 0;
        window_start_ = 0;  // long ago: the next window decides nothing, it only starts the clock
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

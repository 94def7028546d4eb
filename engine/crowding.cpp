#include "engine/crowding.hpp"

#include <algorithm>

namespace sidestep::engine {

bool Crowding::is_over(uint64_t until) noexcept {
  if (now_ns() < until) return false;
  over_.store(until, std::memory_order_relaxed);
  return true;
}

bool Crowding::lost(uint64_t time, uint64_t now) noexcept {
  const uint64_t last = last_.load(std::memory_order_relaxed);
  if (now <= last) return false;  // another thread was away for longer, and has counted this
  last_.store(now, std::memory_order_relaxed);
  if (now < until()) return false;
  time = std::min(time, now - last);
  const uint64_t forgotten = (now - last - time) / kForgotten;
  const uint64_t before = lost_.load(std::memory_order_relaxed);
  const uint64_t sum = (before > forgotten ? before - forgotten : 0) + time;
  if (sum < kTooMuch) {
    lost_.store(sum, std::memory_order_relaxed);
    return false;
  }
  lost_.store(0, std::memory_order_relaxed);
  // Soon after the last rest: what it made room for is still there.
  const uint64_t rest = rest_.load(std::memory_order_relaxed);
  const uint64_t ended = std::max(until(), heard_.load(std::memory_order_relaxed));
  const bool again = now < ended || now - ended < rest + 4 * kTooMuch;
  const uint64_t next = again ? std::min(2 * rest, kLongestRest) : kFirstRest;
  rest_.store(next, std::memory_order_relaxed);
  until_.store(now + next, std::memory_order_relaxed);
  return true;
}

bool Crowding::hear(uint64_t until, std::atomic<uint64_t>& past) noexcept {
  const uint64_t now = now_ns();
  if (until <= now || until - now > kLongestRest) {
    past.store(until, std::memory_order_relaxed);
    return false;
  }
  // The next one of ours is as long, so that they end together.
  if (rest_.load(std::memory_order_relaxed) < until - now)
    rest_.store(until - now, std::memory_order_relaxed);
  if (heard_.load(std::memory_order_relaxed) < until)
    heard_.store(until, std::memory_order_relaxed);
  return true;
}

}  // namespace sidestep::engine

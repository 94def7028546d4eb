#include "engine/progress/crowding.hpp"

#include <algorithm>

namespace sidestep::engine {

bool Crowding::is_over(uint64_t until) noexcept {
  const uint64_t now = now_ns();
  if (now < until) return false;
  const bool first = over_.exchange(until, std::memory_order_relaxed) != until;
  if (first && blames_quota_.load(std::memory_order_relaxed) == until) {
    constexpr uint64_t kTwentieth = 20;
    const uint64_t rest = rest_.load(std::memory_order_relaxed);
    if (newly_throttled() > rest / kTwentieth)
      acquitted_until_.store(now + kAcquitted, std::memory_order_relaxed);
  }
  return true;
}

uint64_t Crowding::newly_throttled() noexcept {
  const uint64_t now = quota_.throttled();
  const uint64_t before = throttled_.exchange(now, std::memory_order_relaxed);
  return now > before ? now - before : 0;
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
  // This is a system call, but the thread has just been away for milliseconds.
  const bool by_quota = quota_.exists() && newly_throttled() > sum / 2;
  if (by_quota && now < acquitted_until_.load(std::memory_order_relaxed)) return false;
  // If this comes soon after the last rest, whatever that rest made room for is still there.
  const uint64_t rest = rest_.load(std::memory_order_relaxed);
  const uint64_t ended = std::max(until(), heard_.load(std::memory_order_relaxed));
  const bool again = now < ended || now - ended < rest + 4 * kTooMuch;
  const uint64_t least = by_quota ? kRestOfQuota : kFirstRest;
  const uint64_t next = again ? std::clamp(2 * rest, least, kLongestRest) : least;
  if (by_quota) blames_quota_.store(now + next, std::memory_order_relaxed);
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
  // Our next rest is as long, so that they end together.
  if (rest_.load(std::memory_order_relaxed) < until - now)
    rest_.store(until - now, std::memory_order_relaxed);
  if (heard_.load(std::memory_order_relaxed) < until)
    heard_.store(until, std::memory_order_relaxed);
  return true;
}

}  // namespace sidestep::engine

#pragma once
/// Whether others want the processors that threads of ours would poll on.
///
/// Threads that wait for each other by turns of microseconds may poll as many as there are: who
/// finds nothing yields, and the one that makes the answer has the processor at once. But a yield
/// to a thread that computes lasts as long as that one's slice, which is milliseconds. So what
/// yields cost is added up. Above kTooMuch nobody polls for a while: threads sleep at once, and the
/// kernel lets those that are woken soon go before those that compute. Then polling is tried anew,
/// and each time that it fails it rests for longer.
///
/// Both ends of a connection do this at the same time (Endpoint::publish_crowded_until): since
/// Linux 6.18 a thread that yields forfeits what is left of its slice, and so waits for
/// milliseconds behind threads that sleep instead, even if nobody else is there. A peer is believed
/// as far as its own connection goes: what waits for others polls on, and others are not told.
///
/// A CPU quota takes the processors from those that poll and from those that sleep. What it takes
/// counts as well, since it may be the polling that has used the quota up. Where it has taken as
/// much while nobody polled, the work itself is more than the quota allows, and polling with
/// yields, which costs less for each message than sleeping, goes on.
///
/// Any thread. Everything is relaxed: a decision that comes late costs some time, no more.
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"
#include "engine/base/cpu_quota.hpp"

namespace sidestep::engine {

class Crowding {
 public:
  explicit Crowding(const CpuQuota& quota) noexcept : quota_(quota) {}
  /// Nobody should poll now.
  bool is_crowded() noexcept {
    const uint64_t until = this->until();
    return until != over_.load(std::memory_order_relaxed) && !is_over(until);
  }
  /// A thread has had no processor from `start` to `end`; `polling` threads of this process wait
  /// so. True: from now on it is crowded.
  bool yielded(uint64_t start, uint64_t end, int polling) noexcept {
    // Each of those, and the threads that answer them, has its turn meanwhile.
    const uint64_t fair = kShort + kTurn * static_cast<uint64_t>(polling);
    return end - start > fair && lost(end - start, end);
  }
  /// On CLOCK_MONOTONIC. It only grows.
  uint64_t until() const noexcept { return until_.load(std::memory_order_relaxed); }
  /// A peer says that it is crowded until then; whether that is now. `past`: of this peer, what it
  /// has said of which is known that it is not.
  bool is_peer_crowded(uint64_t until, std::atomic<uint64_t>& past) noexcept {
    return until != past.load(std::memory_order_relaxed) && hear(until, past);
  }

 private:
  static constexpr uint64_t kMillisecond = 1'000'000;
  static constexpr uint64_t kShort = kMillisecond * 7 / 10;
  static constexpr uint64_t kTurn = 20'000;
  static constexpr uint64_t kTooMuch = 20 * kMillisecond;
  static constexpr uint64_t kForgotten = 4;  ///< after so many milliseconds, one that was lost
  static constexpr uint64_t kFirstRest = 20 * kMillisecond;
  static constexpr uint64_t kLongestRest = 1000 * kMillisecond;
  /// More than a period of a quota, after which it is seen whether that was used up.
  static constexpr uint64_t kRestOfQuota = 150 * kMillisecond;
  static constexpr uint64_t kAcquitted = 10'000 * kMillisecond;

  bool is_over(uint64_t until) noexcept;
  bool lost(uint64_t time, uint64_t now) noexcept;
  /// Nanoseconds that the quota has taken since this was asked last.
  uint64_t newly_throttled() noexcept;
  bool hear(uint64_t until, std::atomic<uint64_t>& past) noexcept;

  std::atomic<uint64_t> until_{0};
  std::atomic<uint64_t> over_{0};           ///< the one of which is known that it is past
  std::atomic<uint64_t> heard_{0};          ///< the last of any peer's
  std::atomic<uint64_t> rest_{kFirstRest};  ///< how long the last one was, a peer's as well
  std::atomic<uint64_t> lost_{0};  ///< in long yields; times in which several wait count once
  std::atomic<uint64_t> last_{0};  ///< end of the last yield that counted

  const CpuQuota& quota_;
  std::atomic<uint64_t> throttled_{0};        ///< by the quota, when it was last asked
  std::atomic<uint64_t> blames_quota_{0};     ///< the rest at whose end the quota is asked
  std::atomic<uint64_t> acquitted_until_{0};  ///< polling, of using the quota up
};

}  // namespace sidestep::engine

#pragma once
/// Finds out whether others want the processors that our threads would poll on.
///
/// If threads wait for each other in turns of microseconds, any number of them may poll: a thread
/// that finds nothing yields, and the one that makes the answer gets the processor at once. But a
/// yield to a thread that computes lasts as long as that thread's slice, which is milliseconds. So
/// this class adds up what yields cost. Above kTooMuch nobody polls for a while: threads sleep at
/// once, and the kernel soon lets threads that are woken go before those that compute. Then polling
/// is tried again, and each time that it fails it rests for longer.
///
/// Both ends of a connection do this at the same time (Endpoint::publish_crowded_until): since
/// Linux 6.18 a thread that yields forfeits what is left of its slice, and so waits for
/// milliseconds behind threads that sleep instead, even if nobody else is there. A peer is believed
/// only as far as its own connection goes: threads that wait for other peers keep polling, and
/// other peers are not told.
///
/// A CPU quota takes the processors from threads that poll and from threads that sleep. What it
/// takes counts as well, since polling may be what has used up the quota. If the quota has taken as
/// much while nobody polled, the work itself is more than the quota allows; then polling with
/// yields, which costs less for each message than sleeping, goes on.
///
/// Any thread. Everything is relaxed: a decision that comes late costs some time and no more.
#include <atomic>
#include <cstdint>

#include "engine/base/clock.hpp"
#include "engine/base/cpu_quota.hpp"

namespace sidestep::engine {

class Crowding {
 public:
  explicit Crowding(const CpuQuota& quota) noexcept : quota_(quota) {}
  /// True if nobody should poll now.
  bool is_crowded() noexcept {
    const uint64_t until = this->until();
    return until != over_.load(std::memory_order_relaxed) && !is_over(until);
  }
  /// Called when a thread has had no processor from `start` to `end`, while `polling` threads of
  /// this process wait by polling. True if it is crowded from now on.
  bool yielded(uint64_t start, uint64_t end, int polling) noexcept {
    // Each of those threads, and the threads that answer them, has its turn meanwhile.
    const uint64_t fair = kShort + kTurn * static_cast<uint64_t>(polling);
    return end - start > fair && lost(end - start, end);
  }
  /// When crowding ends, on CLOCK_MONOTONIC. It only grows.
  uint64_t until() const noexcept { return until_.load(std::memory_order_relaxed); }
  /// True if a peer that says it is crowded until `until` is crowded now. `past`: the value of this
  /// peer that is known not to hold.
  bool is_peer_crowded(uint64_t until, std::atomic<uint64_t>& past) noexcept {
    return until != past.load(std::memory_order_relaxed) && hear(until, past);
  }

 private:
  static constexpr uint64_t kMillisecond = 1'000'000;
  static constexpr uint64_t kShort = kMillisecond * 7 / 10;
  static constexpr uint64_t kTurn = 20'000;
  static constexpr uint64_t kTooMuch = 20 * kMillisecond;
  /// After so many milliseconds, one lost millisecond is forgotten.
  static constexpr uint64_t kForgotten = 4;
  static constexpr uint64_t kFirstRest = 20 * kMillisecond;
  static constexpr uint64_t kLongestRest = 1000 * kMillisecond;
  /// Longer than the period of a quota, after which it shows whether the quota was used up.
  static constexpr uint64_t kRestOfQuota = 150 * kMillisecond;
  static constexpr uint64_t kAcquitted = 10'000 * kMillisecond;

  bool is_over(uint64_t until) noexcept;
  bool lost(uint64_t time, uint64_t now) noexcept;
  /// The nanoseconds that the quota has taken since the last call.
  uint64_t newly_throttled() noexcept;
  bool hear(uint64_t until, std::atomic<uint64_t>& past) noexcept;

  std::atomic<uint64_t> until_{0};
  std::atomic<uint64_t> over_{0};           ///< the value of until_ that is known to be past
  std::atomic<uint64_t> heard_{0};          ///< the latest value from any peer
  std::atomic<uint64_t> rest_{kFirstRest};  ///< length of the last rest, a peer's included
  std::atomic<uint64_t> lost_{0};  ///< in long yields; time in which several wait counts once
  std::atomic<uint64_t> last_{0};  ///< end of the last yield that counted

  const CpuQuota& quota_;
  std::atomic<uint64_t> throttled_{0};        ///< time taken by the quota when it was last asked
  std::atomic<uint64_t> blames_quota_{0};     ///< end of the rest after which the quota is asked
  std::atomic<uint64_t> acquitted_until_{0};  ///< until then polling is not blamed for the quota
};

}  // namespace sidestep::engine

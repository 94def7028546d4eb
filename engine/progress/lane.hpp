#pragma once
/// Lanes: parts of a node's connections. Different threads may poll different lanes at a time, one
/// each.
///
/// A connection belongs to one lane for as long as it lives, and so do the streams that are bound
/// to it. What a peer has posted is polled and dispatched under the lock of the lane. The node's
/// receive lock is the locks of all lanes: its holder may touch what any lane has, and what belongs
/// to none (the tables of streams and connections, streams that are not bound). The holder of one
/// lane's lock may look at all of that, but may change only what is the lane's own.
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

#include "engine/base/counters.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/wakeable.hpp"
#include "engine/progress/dispatch.hpp"
#include "engine/progress/poll_pacer.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

struct alignas(64) Lane {
  Lane(StreamTable& streams, uint32_t which) noexcept
      : number(which), dispatcher(streams, fragments_received) {}
  Lane(const Lane&) = delete;

  const uint32_t number;
  Mutex lock;
  bool polled_all = true;  ///< the last poll found everything; under the lock
  /// How often the lock was released with everything found; for Progress::drain(). Written under
  /// it.
  std::atomic<uint64_t> polled{0};
  PollPacer pacer;
  Dispatcher dispatcher;
  // Under the lock.
  Counter polls;     ///< polls of the receive completion queue
  Counter receives;  ///< work requests received
  Counter fragments_received;
};

/// The node's receive lock. Lockable as the standard library defines it, and as Mutex is.
class Lanes {
 public:
  explicit Lanes(StreamTable& streams) noexcept
      : Lanes(streams, std::make_index_sequence<kLanes>()) {}
  Lanes(const Lanes&) = delete;

  void lock() noexcept {
    // The first lock keeps other lanes from being opened meanwhile.
    lanes_[0].lock.lock();
    for (Lane& lane : open().subspan(1)) lane.lock.lock();
  }
  bool try_lock() noexcept {
    if (!lanes_[0].lock.try_lock()) return false;
    return lock_others([](Mutex& mutex) { return mutex.try_lock(); });
  }
  /// Like Mutex::lock_unless_stuck().
  bool lock_unless_stuck() noexcept {
    if (!lanes_[0].lock.lock_unless_stuck()) return false;
    return lock_others([](Mutex& mutex) { return mutex.lock_unless_stuck(); });
  }
  void unlock() noexcept { unlock(open().size()); }

  /// The open lanes, which are the first ones. Others may be opened at any moment, but not while
  /// the caller holds the lock of any of these.
  std::span<Lane> open() noexcept {
    // acquire pairs with the release in open_up_to(): the lane is complete.
    return std::span(lanes_).first(count_.load(std::memory_order_acquire));
  }
  /// True if the lane has a connection; the first lane always counts as having one. Any thread: a
  /// lane that gets a connection at this moment is polled by whoever looks next.
  bool is_used(const Lane& lane) const noexcept {
    return (used_.load(std::memory_order_acquire) >> lane.number & 1U) != 0;
  }
  /// Called under the receive lock.
  void set_used(uint32_t lane, bool used) noexcept {
    const uint32_t bit = 1U << lane;
    const uint32_t before = used_.load(std::memory_order_relaxed);
    // release pairs with is_used(): a poll finds what has been posted to the lane's connections.
    used_.store((used ? before | bit : before & ~bit) | 1U, std::memory_order_release);
  }
  /// Called under the receive lock, which includes the new lanes' locks when this returns.
  void open_up_to(uint32_t count) noexcept {
    for (uint32_t i = count_.load(std::memory_order_relaxed); i < count; ++i) {
      lanes_[i].lock.lock();
      count_.store(i + 1, std::memory_order_release);
    }
  }

 private:
  template <size_t... Numbers>
  Lanes(StreamTable& streams, std::index_sequence<Numbers...>) noexcept
      : lanes_{Lane(streams, Numbers)...} {}

  template <typename Take>
  bool lock_others(Take take) noexcept {
    const auto lanes = open();
    for (size_t i = 1; i < lanes.size(); ++i)
      if (!take(lanes[i].lock)) {
        unlock(i);
        return false;
      }
    return true;
  }
  void unlock(size_t count) noexcept {
    while (count != 0) lanes_[--count].lock.unlock();
  }

  std::atomic<uint32_t> count_{1};
  std::atomic<uint32_t> used_{1};  // a bit for each lane
  std::array<Lane, kLanes> lanes_;
};

/// Holds the node's receive lock. The threads that its holder wakes are woken when the lock has
/// been released (WakeBatch).
class ReceiveLockGuard {
 public:
  explicit ReceiveLockGuard(Lanes& lanes) noexcept : guard_(lanes) {}
  // Not inline, because no hot path ends here: this contains the end of a batch, which is inlined
  // wherever a batch ends.
  [[gnu::noinline]] ~ReceiveLockGuard() {}
  ReceiveLockGuard(const ReceiveLockGuard&) = delete;

 private:
  // The last member ends first. `mutable`: the batch of a constant guard takes in sleepers.
  mutable WakeBatch wake_ups_after_the_lock_;
  const std::lock_guard<Lanes> guard_;
};

}  // namespace sidestep::engine

// Progress of the engine, made by whichever thread calls: polling, dispatching, posting. Nothing
// here allocates, except in the queues that say so, or blocks, or makes a system call other than
// for doorbells.
#include <algorithm>
#include <mutex>

#include "engine/control/manager_jobs.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/wait.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {

inline bool Progress::poll_once_locked(Lane& lane) noexcept {
  RecvCompletion completions[kLeastPolled];
  size_t count = 0;
  bool all = true;
  bool held_up = false;
  for (const auto& device : devices_) {
    const Device::Lane& polled = device->lanes[lane.number];
    if (polled.endpoints == 0) continue;
    const size_t found = device->poll_recv(lane.number, completions);
    for (size_t i = 0; i < found; ++i) {
      if (!lane.dispatcher.dispatch(completions[i])) report_broken(*completions[i].endpoint);
    }
    count += found;
    all = all && polled.found_all;
    held_up = held_up || polled.held_up;
  }
  lane.polled_all = all;
  lane.polls.add_exclusive();
  lane.pacer.polled(count);
  if (count == 0) return false;
  lane.receives.add_exclusive(count);
  lane.dispatcher.notify();
  if (held_up) [[unlikely]]
    spill_held_up_locked(lane);
  return true;
}

bool Progress::spill_locked(Connection& connection, bool waits) noexcept {
  bool all = true;
  connection.for_streams([&](Stream& stream) {
    const uint64_t limit = waits ? now_ns() + 1'000'000'000 : 0;  // as in lock_unless_stuck()
    if (!stream.receiver().mutex().lock_unless([&] { return !waits || now_ns() > limit; })) {
      all = false;
      return;
    }
    const uint64_t copied = stream.receiver().spill_locked();
    stream.receiver().unlock();
    if (copied == 0) return;
    counters().spills.add();
    counters().spilled_bytes.add(copied);
  });
  return all;
}

void Progress::spill_held_up_locked(Lane& lane) noexcept {
  for (const auto& device : devices_) device->lanes[lane.number].held_up = false;
  for (const auto& connection : connections_.all())
    if (connection->lane() == lane.number && !connection->is_closed() &&
        connection->endpoint().is_held_up(1)) {
      spill_locked(*connection, false);
      // A thread that reads may have lost its processor.
      if (connection->endpoint().is_held_up(3)) spill_locked(*connection, true);
    }
}

void Progress::want_all(const Lane& lane) noexcept {
  for (const auto& device : devices_)
    device->lanes[lane.number].want_all.store(true, std::memory_order_release);
}

void Progress::drain_locked(Lane& lane) noexcept {
  size_t rest = 0;
  for (const auto& device : devices_) rest += device->polls_to_drain(lane.number);
  do {
    want_all(lane);
    poll_once_locked(lane);
  } while (!lane.polled_all && rest-- != 0);
  lane.polled_all = true;  // all of what there was
}

inline void Progress::unlock_polled(Lane& lane) noexcept {
  // release pairs with the acquire in drain(): what has been found is in the queues. The addition
  // can be plain under the lock.
  if (lane.polled_all)
    lane.polled.store(lane.polled.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  lane.lock.unlock();
}

inline bool Progress::progress_locked(Lane& lane) noexcept {
  const bool found = poll_once_locked(lane);
  if (posting_.is_starved())
    for (const auto& connection : connections_.all())
      if (connection->lane() == lane.number && connection->is_starved() &&
          !connection->is_closed() && connection->relieve())
        connection->for_streams([](Stream& stream) { stream.signal(kWritable); });
  if (deferred_.has_any()) deferred_.run_locked(recv_lock_.open().size() == 1);
  return found;
}

bool Progress::poll(Lane& lane) noexcept {
  lane.pacer.wait_turn();
  WakeBatch wake_ups_after_the_lock;
  if (!lane.lock.try_lock()) return false;
  const bool found = progress_locked(lane);
  unlock_polled(lane);
  posting_.post_requested();
  if (deferred_.has_set_aside()) [[unlikely]]
    take_up_set_aside();
  return found;
}

bool Progress::poll() noexcept {
  bool found = false;
  for (Lane& lane : recv_lock_.open())
    if (recv_lock_.is_used(lane)) found = poll(lane) || found;
  return found;
}

void Progress::drain(Lane& lane) noexcept {
  WakeBatch wake_ups_after_the_lock;
  if (held_locks.count != 0) {
    // The caller may be a signal handler, which cannot wait: its thread may hold the lock itself.
    if (!lane.lock.lock_unless_stuck()) return;
  } else if (!lane.lock.try_lock()) {
    // The poll that is under way may be past what the caller means. The next one is certain not to
    // be: its thread took the lock after the previous thread had counted its poll, and so after
    // this load. acquire pairs with the release in unlock_polled(). The try_lock() was a full
    // barrier, after what the caller has posted.
    const uint64_t polled = lane.polled.load(std::memory_order_acquire);
    const auto looked = [&] { return lane.polled.load(std::memory_order_acquire) - polled >= 2; };
    if (!lane.lock.lock_unless(looked)) return;
  }
  want_all(lane);
  progress_locked(lane);
  if (!lane.polled_all) drain_locked(lane);
  unlock_polled(lane);
  posting_.post_requested();
}

void Progress::drain_all_locked() noexcept {
  for (Lane& lane : recv_lock_.open()) drain_locked(lane);
}

void Progress::drain() noexcept {
  for (Lane& lane : recv_lock_.open())
    if (recv_lock_.is_used(lane)) drain(lane);
}

// Streams that share a host keep their connection while they live.

void Progress::drain_for(const Stream& stream) noexcept {
  if (!stream.shares_host()) return drain();
  drain(lane_of(*stream.connection()));
  if (SpinBudget::mine().owes_a_poll() && recv_lock_.open().size() > 1 &&
      attendance_.others_depend_on_polling())
    poll();
}

bool Progress::poll_for(const Stream& stream) noexcept {
  return stream.shares_host() ? poll(lane_of(*stream.connection())) : poll();
}

bool Progress::relieve_peers(uint64_t now) noexcept {
  constexpr uint64_t kStalled = 1'000'000;  // 1 ms: longer than a reader that is at work needs
  for (const auto& device : devices_)
    if (device->wants_memory()) jobs_.grow(*device);
  WakeBatch wake_ups_after_the_lock;
  // With several lanes, a try hardly ever gets all of their locks.
  if (recv_lock_.open().size() > 1) {
    recv_lock_.lock();
  } else if (!recv_lock_.try_lock()) {
    return false;
  }
  const std::lock_guard guard(recv_lock_, std::adopt_lock);
  if (deferred_.has_set_aside()) deferred_.run_locked(true);
  bool waiting = false;
  for (const auto& connection : connections_.all()) {
    Endpoint& endpoint = connection->endpoint();
    const uint64_t uses = connection->uses();
    if (uses != connection->uses_seen) {
      connection->uses_seen = uses;
      connection->used_at = now;
    }
    // A device may report a failure only to a caller that asks for its completions.
    if (!connection->is_closed()) {
      endpoint.completed();
      endpoint.watch(now);
    }
    if (endpoint.is_broken() && !connection->failure_reported && !connection->is_closed()) {
      connection->failure_reported = true;
      report_broken(endpoint);
    }
    if (endpoint.owes_window.load(std::memory_order_relaxed) && !connection->is_closed())
      connection->kick();
    const uint64_t unreleased = endpoint.unreleased();
    if (unreleased == 0 || !endpoint.peer_wants_release()) {
      connection->stalled_since = 0;
      continue;
    }
    if (connection->stalled_since == 0 || connection->stalled_unreleased != unreleased) {
      connection->stalled_since = now;
      connection->stalled_unreleased = unreleased;
      waiting = true;
      continue;
    }
    if (now - connection->stalled_since < kStalled) {
      waiting = true;
      continue;
    }
    // The peer's ring is full and nobody here reads, so move what lies in it out of the way. Each
    // stream's part is bounded by its credit.
    // A thread that reads right now, perhaps into a page that is slow to come, is left alone: this
    // thread holds the lock that all others need, and looks again in the next round.
    if (spill_locked(*connection, false)) {
      connection->stalled_since = 0;
    } else {
      waiting = true;
    }
  }
  connections_.sweep();
  return waiting;
}

}  // namespace sidestep::engine

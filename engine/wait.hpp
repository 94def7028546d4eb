#pragma once
/// Load-adaptive waiting (Ibdxnet, section 7.2.5): poll, yield, then let the caller park.
///
/// The thread that waits makes progress itself. How long it polls adapts to what polling earned it:
/// a wait that ended while polling restores the full budget (SIDESTEP_SPIN_US), one that had to
/// park halves it, and one that was over before the full budget would have been doubles it again.
/// On a machine with few cores a polling thread can keep the very peer from running that it waits
/// for: when the peer was last seen on this CPU, when other threads poll as well, and every few
/// microseconds in any case, the processor is given away. Where that costs too much nobody polls
/// (crowding.hpp).
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/clock.hpp"
#include "engine/node.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {

/// Per thread: what polling has earned lately.
class SpinBudget {
 public:
  static SpinBudget& mine() noexcept;
  uint64_t nanoseconds(uint64_t full) const noexcept { return full >> shift_; }
  void won() noexcept { shift_ = 0; }
  /// Polling since `start` was in vain.
  void lost(uint64_t start) noexcept {
    if (shift_ < 5) ++shift_;
    waiting_since_ = start;
  }
  /// The sleep after it is over.
  void slept(uint64_t full) noexcept {
    turn_began_ = now_ns();
    if (shift_ != 0 && turn_began_ - waiting_since_ < full) --shift_;
  }

  /// To be asked before each wait. A thread whose waits are over before it would give the processor
  /// away has it until the kernel takes it, which is milliseconds, and others of its own program
  /// wait for that. Not each time: the clock costs a twentieth of a round trip.
  bool is_turn_over() noexcept {
    constexpr unsigned kEvery = 16;
    return ++waits_ % kEvery == 0 && now_ns() - turn_began_ > turn_;
  }
  /// It has given the processor away from `start` to `end`.
  void begin_turn(uint64_t start, uint64_t end) noexcept {
    constexpr uint64_t kLongest = 50'000;
    constexpr uint64_t kShortest = 8'000;
    constexpr uint64_t kNobody = 1'500;  // what it takes where nobody else wants it
    turn_began_ = end;
    away_ = end - start;
    turn_ = end - start > kNobody ? kShortest : std::min(2 * turn_, kLongest);
  }
  /// Every so many times that a thread polls one lane: it looks at the others, too.
  bool owes_a_poll() noexcept { return ++polls_of_one_ % 16 == 0; }
  /// The last time. The next one may be as long.
  bool was_away_for_long() const noexcept { return away_ > 100'000; }

 private:
  unsigned shift_ = 0;
  unsigned waits_ = 0;
  unsigned polls_of_one_ = 0;
  uint64_t away_ = 0;
  uint64_t waiting_since_ = 0;
  uint64_t turn_began_ = 0;
  uint64_t turn_ = 50'000;
};

/// Gives the processor away, at `now`. The time when it is back.
uint64_t yield(Node& node, uint64_t now) noexcept;

/// Whose progress a thread waits for, as far as that matters to how it polls.
struct SpinPeer {
  /// Several, or nobody knows.
  SpinPeer() = default;
  explicit SpinPeer(Connection* connection) noexcept
      : here(connection), remote(connection != nullptr && connection->endpoint().peer_cpu() < 0) {}
  explicit SpinPeer(const Stream& stream) noexcept
      : here(stream.shares_host() ? stream.connection() : nullptr), remote(!stream.shares_host()) {}

  Connection* here = nullptr;  ///< tells on which processor the peer runs
  bool remote = false;         ///< on none of ours
};

/// Whether threads had better not poll now. What the two ends of a connection know of it is
/// exchanged.
inline bool is_crowded(Node& node, const SpinPeer& peer) noexcept {
  Crowding& crowding = node.crowding();
  if (peer.here != nullptr) {
    Endpoint& endpoint = peer.here->endpoint();
    endpoint.publish_crowded_until(crowding.until());
    if (crowding.is_peer_crowded(endpoint.peer_crowded_until(), peer.here->was_crowded))
      return true;
  }
  return crowding.is_crowded();
}

/// A moment of polling, before a call prepares to wait: an answer that is on its way comes while it
/// would do so, which takes as long as a few polls. Nothing where another thread polls anyway, or
/// the peer needs this processor to answer. Returns whether it is ready.
template <typename Ready>
bool poll_shortly(Node& node, const SpinPeer& peer, Ready ready) noexcept {
  constexpr int kPolls = 8;
  if (peer.here == nullptr || node.config().spin_us == 0 || is_crowded(node, peer)) return false;
  if (SpinBudget& budget = SpinBudget::mine(); budget.is_turn_over()) [[unlikely]] {
    const uint64_t now = now_ns();
    budget.begin_turn(now, yield(node, now));
  }
  if (node.attendance().anyone_looks()) return false;
  const Endpoint& endpoint = peer.here->endpoint();
  const int cpu = current_cpu();
  if (cpu < 0 || endpoint.peer_cpu() == cpu) return false;
  for (int i = 0; i < kPolls; ++i) {
    for (int looks = 0; looks < 4 && !endpoint.may_have_received(); ++looks) cpu_relax();
    node.poll_for(peer.here);
    if (ready()) return true;
  }
  return false;
}

/// Where nobody polls: what has come already.
template <typename Ready>
bool look_once(Node& node, const SpinPeer& peer, Ready ready) noexcept {
  // What others sent is not for this thread, and the lock is one that all of them want.
  if (peer.here == nullptr || peer.here->endpoint().may_have_received()) node.poll_for(peer.here);
  return ready();
}

/// Polls until `ready()` or until the budget is spent. Returns whether it is ready.
///
/// Several threads may do so, each for what it waits for itself. They yield after each look then:
/// the next one to run is one of them, or one that makes their answers.
template <typename Ready>
bool spin_until(Node& node, const SpinPeer& peer, Ready ready) noexcept {
  if (node.config().spin_us == 0 || is_crowded(node, peer)) return look_once(node, peer, ready);
  Attendance& attendance = node.attendance();
  attendance.enter();
  SpinBudget& budget = SpinBudget::mine();
  // A peer on another host gains nothing by our yielding; threads of this one still do.
  constexpr uint64_t kYieldEvery = 4'000;
  constexpr uint64_t kYieldEveryRemote = 50'000;
  const uint64_t yield_every = peer.remote ? kYieldEveryRemote : kYieldEvery;
  const uint64_t start = now_ns();
  const uint64_t limit = budget.nanoseconds(uint64_t{node.config().spin_us} * 1000);
  uint64_t next_yield = start + yield_every;
  bool done = false;
  for (unsigned round = 0;; ++round) {
    // Now and then for those who sleep, whatever lane it is that they wait for.
    if (budget.owes_a_poll() && attendance.others_depend_on_polling()) [[unlikely]] {
      node.poll();
    } else {
      node.poll_for(peer.here);
    }
    if ((done = ready())) break;
    bool gives_way = attendance.polling() > 1;
    if (peer.here != nullptr) {
      const int cpu = current_cpu();
      // Of several threads it would tell nothing, and each change of it costs the peer a cache
      // miss.
      if (!gives_way) peer.here->endpoint().publish_cpu(cpu);
      gives_way = gives_way || (peer.here->endpoint().peer_cpu() == cpu && cpu >= 0);
    }
    if (!gives_way && round % 8 != 0) {
      // An adapter's queue takes longer to look at than a pause is, and no line of the peer's.
      if (!peer.remote) cpu_relax();
      // A poll takes as long as a few pauses, and what comes at its beginning waits for the next.
      // So the one that is waited for is looked at in between, and the others are polled soon.
      for (int looks = 0; peer.here != nullptr && looks < 4; ++looks) {
        if (peer.here->endpoint().may_have_received()) break;
        cpu_relax();
      }
      continue;
    }
    const uint64_t now = now_ns();
    if (now - start >= limit) break;
    if (gives_way || now >= next_yield) {
      // Threads that sleep count on those that poll, and this one may be away for as long as a
      // whole run queue takes. Each time would cost a doorbell for each message where many poll.
      const bool hand_over = budget.was_away_for_long() && attendance.others_sleep();
      if (hand_over) attendance.pause();
      const uint64_t back = yield(node, now);
      if (hand_over) attendance.resume();
      budget.begin_turn(now, back);
      if (is_crowded(node, peer)) {
        done = look_once(node, peer, ready);
        break;
      }
      next_yield = back + yield_every;
    }
  }
  if (done) {
    budget.won();
    node.counters().spins_won.add();
  } else {
    budget.lost(start);
  }
  attendance.leave();
  return done;
}

/// The endpoint whose peer wakes the very threads that wait to read this stream, so that they need
/// nobody who listens or leads meanwhile. Null: there is none, or something of this node's waits
/// for whoever polls next.
Endpoint* waker_of(const Node& node, const Stream& stream) noexcept;

/// Around naps: counts the caller as parked.
class Napping {
 public:
  explicit Napping(Node& node) noexcept;
  ~Napping();
  Napping(const Napping&) = delete;

 private:
  Node& node_;
};

/// Before a nap, once for each stream that is waited for: nap() and what it asks to be looked at.
Nap prepare_nap(Node& node, Endpoint& waker, const Stream& stream, Waiter& waiter) noexcept;

/// Around a sleep: counts the caller as parked and sees to it that somebody rings for it.
/// Construct, look once more at what is waited for, sleep, destroy.
///
/// One that is the only one leads, if it can: it waits for the doorbells itself, so that what it
/// sleeps for need not wake the progress thread first, and dispatches for those that park beside it
/// meanwhile. When several sleep, what comes is mostly for another one than the one that would
/// lead, and it would have to be followed each time: the progress thread does that at less expense.
class Parking {
 public:
  static constexpr size_t kBells = 2;

  explicit Parking(Node& node, bool can_lead = false) noexcept;
  ~Parking();
  Parking(const Parking&) = delete;

  /// The doorbells that a sleeper that said that it can lead has to wait for as well.
  std::span<const pollfd> bells() const noexcept { return {bells_, count_}; }
  /// After the sleep, with what became of them. True when one had rung: what it was rung for has
  /// been dispatched, or as much as `ready()` waited for. Then the rest is for whoever is next, for
  /// whom the doorbell is rung again. Before another sleep: rearm(), and look at what is waited
  /// for.
  template <typename Ready>
  bool answer(std::span<const pollfd> bells, Ready ready) noexcept {
    if (!begin_answer(bells)) return false;
    bool found = node_.poll();
    while (found && !ready()) found = node_.poll();
    end_answer(!found);
    return true;
  }
  void rearm() noexcept;

 private:
  bool begin_answer(std::span<const pollfd> bells) noexcept;
  void end_answer(bool drained) noexcept;
  void for_bells(void (Device::*call)() noexcept) noexcept;

  Node& node_;
  bool leads_;
  size_t count_ = 0;
  pollfd bells_[kBells];
};

}  // namespace sidestep::engine

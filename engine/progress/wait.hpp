#pragma once
/// Load-adaptive waiting (Ibdxnet, section 7.2.5): poll, yield, then let the caller park.
///
/// The waiting thread makes progress itself. How long it polls adapts to what polling has earned
/// it: a wait that ended while polling restores the full budget (SIDESTEP_SPIN_US), one that had to
/// park halves it, and one that was over before the full budget would have been doubles it again.
/// On a machine with few cores a polling thread can keep the very peer that it waits for from
/// running. So it yields the processor when the peer was last seen on this CPU, when other threads
/// poll as well, and every few microseconds in any case. Where that costs too much, nobody polls
/// (crowding.hpp).
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/clock.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {

/// What polling has earned a thread lately. One for each thread.
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
  /// The sleep that followed is over.
  void slept(uint64_t full) noexcept {
    turn_began_ = now_ns();
    if (shift_ != 0 && turn_began_ - waiting_since_ < full) --shift_;
  }

  /// Called before each wait. A thread whose waits end before it would yield keeps the processor
  /// until the kernel takes it, which takes milliseconds, and other threads of its own program wait
  /// that long. Does not look at the clock each time, because that costs a twentieth of a round
  /// trip.
  bool is_turn_over() noexcept {
    constexpr unsigned kEvery = 16;
    return ++waits_ % kEvery == 0 && now_ns() - turn_began_ > turn_;
  }
  /// The thread has yielded the processor from `start` to `end`.
  void begin_turn(uint64_t start, uint64_t end) noexcept {
    constexpr uint64_t kLongest = 50'000;
    constexpr uint64_t kShortest = 8'000;
    constexpr uint64_t kNobody = 1'500;  // what a yield takes when nobody else wants the processor
    turn_began_ = end;
    away_ = end - start;
    turn_ = end - start > kNobody ? kShortest : std::min(2 * turn_, kLongest);
  }
  /// True once for every so many polls of one lane: the thread then looks at the others, too.
  bool owes_a_poll() noexcept { return ++polls_of_one_ % 16 == 0; }
  /// True if the last yield was long. The next one may be as long.
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

/// Yields the processor at `now`. Returns the time at which the thread has it back.
uint64_t yield(Progress& progress, uint64_t now) noexcept;

/// The peer whose progress a thread waits for, as far as that matters to how it polls.
struct SpinPeer {
  /// Several peers, or unknown.
  SpinPeer() = default;
  explicit SpinPeer(Connection* connection) noexcept
      : here(connection), remote(connection != nullptr && connection->endpoint().peer_cpu() < 0) {}
  explicit SpinPeer(const Stream& stream) noexcept
      : here(stream.shares_host() ? stream.connection() : nullptr), remote(!stream.shares_host()) {}

  Connection* here = nullptr;  ///< tells on which processor the peer runs
  bool remote = false;         ///< the peer runs on none of our processors
};

/// True if threads had better not poll now. The two ends of a connection exchange what they know
/// about this.
inline bool is_crowded(Progress& progress, const SpinPeer& peer) noexcept {
  Crowding& crowding = progress.crowding();
  if (peer.here != nullptr) {
    Endpoint& endpoint = peer.here->endpoint();
    endpoint.publish_crowded_until(crowding.until());
    if (crowding.is_peer_crowded(endpoint.peer_crowded_until(), peer.here->was_crowded))
      return true;
  }
  return crowding.is_crowded();
}

/// Polls for a moment before a call prepares to wait. Preparing takes as long as a few polls, and
/// an answer that is on its way arrives in that time. Does nothing if another thread polls anyway
/// or the peer needs this processor to answer. Returns whether `ready()` is true.
template <typename Ready>
bool poll_shortly(Progress& progress, const SpinPeer& peer, Ready ready) noexcept {
  constexpr int kPolls = 8;
  if (peer.here == nullptr || progress.spin_us() == 0 || is_crowded(progress, peer)) return false;
  if (SpinBudget& budget = SpinBudget::mine(); budget.is_turn_over()) [[unlikely]] {
    const uint64_t now = now_ns();
    budget.begin_turn(now, yield(progress, now));
  }
  if (progress.attendance().anyone_looks()) return false;
  const Endpoint& endpoint = peer.here->endpoint();
  const int cpu = current_cpu();
  if (cpu < 0 || endpoint.peer_cpu() == cpu) return false;
  for (int i = 0; i < kPolls; ++i) {
    for (int looks = 0; looks < 4 && !endpoint.may_have_received(); ++looks) cpu_relax();
    progress.poll_for(peer.here);
    if (ready()) return true;
  }
  return false;
}

/// Takes what has already come; for when nobody should poll.
template <typename Ready>
bool look_once(Progress& progress, const SpinPeer& peer, Ready ready) noexcept {
  // What other peers sent is not for this thread, and all threads want the lock.
  if (peer.here == nullptr || peer.here->endpoint().may_have_received())
    progress.poll_for(peer.here);
  return ready();
}

/// Polls until `ready()` is true or the budget is spent. Returns whether `ready()` is true.
///
/// Several threads may poll at once, each for what it waits for itself. They then yield after each
/// look: the next thread to run is one of them, or one that makes their answers.
template <typename Ready>
bool spin_until(Progress& progress, const SpinPeer& peer, Ready ready) noexcept {
  if (progress.spin_us() == 0 || is_crowded(progress, peer))
    return look_once(progress, peer, ready);
  Attendance& attendance = progress.attendance();
  attendance.enter();
  SpinBudget& budget = SpinBudget::mine();
  // A peer on another host gains nothing from our yielding, but threads of this host still do.
  constexpr uint64_t kYieldEvery = 4'000;
  constexpr uint64_t kYieldEveryRemote = 50'000;
  const uint64_t yield_every = peer.remote ? kYieldEveryRemote : kYieldEvery;
  const uint64_t start = now_ns();
  const uint64_t limit = budget.nanoseconds(progress.spin_us() * 1000);
  uint64_t next_yield = start + yield_every;
  bool done = false;
  for (unsigned round = 0;; ++round) {
    // Now and then poll for the threads that sleep, whichever lane they wait for.
    if (budget.owes_a_poll() && attendance.others_depend_on_polling()) [[unlikely]] {
      progress.poll();
    } else {
      progress.poll_for(peer.here);
    }
    if ((done = ready())) break;
    bool gives_way = attendance.polling() > 1;
    if (peer.here != nullptr) {
      const int cpu = current_cpu();
      // With several threads the CPU would say nothing, and each change of it costs the peer a
      // cache miss.
      if (!gives_way) peer.here->endpoint().publish_cpu(cpu);
      gives_way = gives_way || (peer.here->endpoint().peer_cpu() == cpu && cpu >= 0);
    }
    if (!gives_way && round % 8 != 0) {
      // Looking at an adapter's queue takes longer than a pause, and takes no line from the peer.
      if (!peer.remote) cpu_relax();
      // A poll takes as long as a few pauses, and what arrives at its beginning waits for the next
      // poll. So in between we look at the endpoint that we wait for; the others are polled soon.
      for (int looks = 0; peer.here != nullptr && looks < 4; ++looks) {
        if (peer.here->endpoint().may_have_received()) break;
        cpu_relax();
      }
      continue;
    }
    const uint64_t now = now_ns();
    if (now - start >= limit) break;
    if (gives_way || now >= next_yield) {
      // Sleeping threads count on those that poll, and this one may be away for as long as a whole
      // run queue takes. Handing over on every yield would cost a doorbell for each message where
      // many threads poll.
      const bool hand_over = budget.was_away_for_long() && attendance.others_sleep();
      if (hand_over) attendance.pause();
      const uint64_t back = yield(progress, now);
      if (hand_over) attendance.resume();
      budget.begin_turn(now, back);
      if (is_crowded(progress, peer)) {
        done = look_once(progress, peer, ready);
        break;
      }
      next_yield = back + yield_every;
    }
  }
  if (done) {
    budget.won();
    progress.counters().spins_won.add();
  } else {
    budget.lost(start);
  }
  attendance.leave();
  return done;
}

/// The endpoint whose peer wakes the very threads that wait to read this stream, so that nobody
/// needs to listen for them meanwhile. Null if there is none, or if something in this node
/// waits for whoever polls next.
Endpoint* waker_of(const Progress& progress, const Stream& stream) noexcept;

/// Wraps naps: counts the sleep, as parks are counted.
class Napping {
 public:
  explicit Napping(Progress& progress) noexcept;
  ~Napping();
  Napping(const Napping&) = delete;

 private:
  Progress& progress_;
};

/// Called before a nap, once for each stream that is waited for: calls Endpoint::nap() and does the
/// look that it asks for.
Nap prepare_nap(Progress& progress, Endpoint& waker, const Stream& stream, Waiter& waiter) noexcept;

/// Wraps a sleep: counts the caller as parked and makes sure that somebody rings for it.
/// Construct, look once more at what is waited for, sleep, destroy.
///
/// A thread that is the only one parked owns the doorbells, if it can: it waits for them itself, so
/// that what it sleeps for need not wake the progress thread first, and it dispatches for threads
/// that park beside it meanwhile. When several threads sleep, what comes is mostly for another one
/// than the one that would own them, and it would have to be followed each time: the progress
/// thread does that at less expense.
class Parking {
 public:
  static constexpr size_t kBells = 2;

  explicit Parking(Progress& progress, bool can_own_doorbells = false) noexcept;
  ~Parking();
  Parking(const Parking&) = delete;

  /// The doorbells that a sleeper constructed with `can_own_doorbells` has to wait for as well.
  std::span<const pollfd> bells() const noexcept { return {bells_, count_}; }
  /// Called after the sleep with the polled `bells`. True if one had rung: then what it was rung
  /// for has been dispatched, or as much of it as `ready()` waited for. In the latter case the rest
  /// is left to the next thread, for which the doorbell is rung again. Before another sleep, the
  /// caller calls rearm() and looks at what it waits for.
  template <typename Ready>
  bool answer(std::span<const pollfd> bells, Ready ready) noexcept {
    if (!begin_answer(bells)) return false;
    bool found = progress_.poll();
    while (found && !ready()) found = progress_.poll();
    end_answer(!found);
    return true;
  }
  void rearm() noexcept;

 private:
  bool begin_answer(std::span<const pollfd> bells) noexcept;
  void end_answer(bool drained) noexcept;
  void for_bells(void (Device::*call)() noexcept) noexcept;

  Progress& progress_;
  bool owns_doorbells_;
  size_t count_ = 0;
  pollfd bells_[kBells];
};

}  // namespace sidestep::engine

#pragma once
/// How a thread is woken that sleeps in ppoll(2): a handful of eventfds for all of them.
///
/// A thread that need not wait for a descriptor sleeps on a word of its own memory (waiter.hpp).
/// One that has to, for the anchor of a stream that the kernel carries as a rule, waits for one of
/// these as well. The first is opened when the engine starts: a thread that is about to sleep must
/// not depend on whether a descriptor is free. The others, which spare threads the wake-ups of
/// others, come with the first device, or not at all.
///
/// Several threads may share one. Its eventfd is level-triggered, and wakes them all.
///
/// Protocol. Under the lock: who sleeps with which alarm (`AlarmPlace::alarm_`, `Alarm::sleepers`),
/// and who of them is called (`called_`; `Alarm::called` counts them).
///
///   caller   marks the sleeper as called, unlocks, writes to the eventfd. Each writes, so that no
///            wake-up depends on another caller, who may have lost its processor in between.
///   sleeper  that leaves takes itself, and its mark, from the counts and unlocks. When nobody is
///            called any more it empties the eventfd, and then looks at the count once more: a
///            caller who came in between has marked its sleeper before it wrote. If there is one
///            the sleeper writes again.
///
/// So the eventfd of an alarm with a sleeper that is called is readable, or about to be, until that
/// sleeper has left: no wake-up is lost. Nobody joins an alarm on which somebody is called, and who
/// is woken without being called leaves it: nobody spins for the time that another one needs. Where
/// all alarms ring, a thread sleeps without one, for a moment only.
///
/// What wakes such sleepers is rare: that a stream is joined to its peer, or changes its carrier,
/// is closed or shut down by another thread.
#include <atomic>

namespace sidestep::engine {

struct Alarm {
  int fd = -1;
  unsigned sleepers = 0;            // under the lock
  std::atomic<unsigned> called{0};  // written under the lock
};

/// One sleeper's place at an alarm, or at none.
class AlarmPlace {
 public:
  /// The owner, before it sleeps. `leads`: it waits for the doorbells of the node and has an alarm
  /// that no other thread uses, as a rule. The eventfd, or negative: there is none, and it must
  /// look again after a moment.
  int enter(bool leads) noexcept;
  /// The owner, awake. `readable`: the eventfd was.
  void leave(bool readable) noexcept;
  /// Any thread.
  void ring() noexcept;

 private:
  Alarm* alarm_ = nullptr;
  bool called_ = false;
};

/// With the node: opens the first one, and takes the descriptors in reserve (private_fd.hpp).
/// False: there are not enough.
bool open_first_alarm() noexcept;
/// Its eventfd, which can be written to at any time. Async-signal-safe.
int first_alarm() noexcept;
/// The others, as many as can be had.
void open_more_alarms() noexcept;
/// The node could not start, and they are about to be closed. False: some thread sleeps with one.
bool forget_idle_alarms() noexcept;
/// In the child: those of the parent are closed. The first sleeper opens one, if it can.
void forget_alarms_after_fork() noexcept;

}  // namespace sidestep::engine

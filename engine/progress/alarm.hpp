#pragma once
/// Wakes threads that sleep in ppoll(2), with a handful of eventfds for all of them.
///
/// A thread that need not wait for a descriptor sleeps on a word of its own memory (waiter.hpp).
/// A thread that has to wait for one, usually the anchor of a stream that the kernel carries, waits
/// for one of these alarms as well. The first is opened when the engine starts: a thread that is
/// about to sleep must not depend on whether a descriptor is free. The others, which spare threads
/// each other's wake-ups, come with the first device, or not at all.
///
/// Several threads may share an alarm. Its eventfd is level-triggered, and wakes them all.
///
/// Protocol. The lock protects who sleeps with which alarm (`AlarmPlace::alarm_`,
/// `Alarm::sleepers`), and which sleepers are called (`called_`; `Alarm::called` counts them).
///
///   caller   marks the sleeper as called, unlocks, and writes to the eventfd. Every caller writes,
///            so that no wake-up depends on another caller, which may have lost its processor in
///            between.
///   sleeper  takes itself and its mark from the counts when it leaves, and unlocks. If no sleeper
///            is called any more, it empties the eventfd and then looks at the count once more: a
///            caller that came in between marked its sleeper before it wrote. If there is one, the
///            leaving sleeper writes again.
///
/// So if a sleeper of an alarm is called, the alarm's eventfd is readable, or about to be, until
/// that sleeper has left: no wake-up is lost. Nobody joins an alarm on which somebody is called,
/// and a thread that is woken without being called leaves it, so nobody spins for as long as
/// another thread needs. If all alarms ring, a thread sleeps without one, but only for a moment.
///
/// Such sleepers are rarely woken: when a stream is joined to its peer or changes its carrier, or
/// when another thread closes it or shuts it down.
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
  /// Called by the owner before it sleeps. `owns_doorbells`: it waits for the doorbells of the
  /// node, and usually gets an alarm that no other thread uses. Returns the eventfd, or a negative
  /// number if there is none and the owner must look again after a moment.
  int enter(bool owns_doorbells) noexcept;
  /// Called by the owner when it is awake. `readable`: the eventfd was readable.
  void leave(bool readable) noexcept;
  /// Wakes the owner. Any thread.
  void ring() noexcept;

 private:
  Alarm* alarm_ = nullptr;
  bool called_ = false;
};

/// Called when the node starts: opens the first alarm, and takes the descriptors in reserve
/// (private_fd.hpp). False if there are not enough.
bool open_first_alarm() noexcept;
/// The eventfd of the first alarm, which can be written to at any time. Async-signal-safe.
int first_alarm() noexcept;
/// Opens the other alarms, as many as the kernel gives.
void open_more_alarms() noexcept;
/// Called when the node could not start and the alarms are about to be closed. False if some thread
/// sleeps with one.
bool forget_idle_alarms() noexcept;
/// Called in the child of fork(), where the parent's alarms are closed. The first sleeper opens
/// one, if it can.
void forget_alarms_after_fork() noexcept;

}  // namespace sidestep::engine

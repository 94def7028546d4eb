#include "engine/progress/wait.hpp"

#include "engine/connection/connection.hpp"

namespace sidestep::engine {

SpinBudget& SpinBudget::mine() noexcept {
  static constinit thread_local SpinBudget budget;
  return budget;
}

uint64_t yield(Progress& progress, uint64_t now) noexcept {
  progress.counters().yields.add();
  sys::sched_yield();
  const uint64_t back = now_ns();
  if (progress.crowding().yielded(now, back, static_cast<int>(progress.attendance().polling())))
    progress.counters().rests.add();
  return back;
}

Napping::Napping(Progress& progress) noexcept : progress_(progress) {
  progress_.counters().parks.add();
}

Napping::~Napping() {
  SpinBudget::mine().slept(progress_.spin_us() * 1000);
}

Endpoint* waker_of(const Progress& progress, const Stream& stream) noexcept {
  if (!stream.is_bound() || !stream.shares_host() ||
      stream.receiver().carrier() != Carrier::engine || progress.deferred().has_any() ||
      progress.posting().is_starved() || !Sleeper::can_nap())
    return nullptr;
  Endpoint& endpoint = stream.connection()->endpoint();
  return endpoint.wakes_readers() ? &endpoint : nullptr;
}

Nap prepare_nap(Progress& progress, Endpoint& waker, const Stream& stream,
                Waiter& waiter) noexcept {
  const Nap nap = waker.nap(stream.id());
  waiter.nap(nap);
  // The nap does not report what came before.
  if (waker.may_have_received()) progress.drain(progress.lane_of(*stream.connection()));
  return nap;
}

Parking::Parking(Progress& progress, bool can_own_doorbells) noexcept : progress_(progress) {
  progress_.counters().parks.add();
  const bool alone = progress_.attendance().park();
  if (can_own_doorbells && alone)
    for (const auto& device : progress_.devices())
      if (device->rings_any_thread() && count_ < kBells)
        bells_[count_++] = {device->event_fd(), POLLIN, 0};
  owns_doorbells_ = count_ != 0 && progress_.attendance().own_doorbells();
  if (!owns_doorbells_) count_ = 0;
  rearm();
}

void Parking::for_bells(void (Device::*call)() noexcept) noexcept {
  for (const auto& device : progress_.devices())
    if (device->rings_any_thread()) (device.get()->*call)();
}

void Parking::rearm() noexcept {
  // A thread that spins now dispatches for us, and arms when it leaves (Attendance). If the peers
  // already ring, they wake the doorbell owner, or else the progress thread.
  progress_.attendance().rearm();
}

bool Parking::begin_answer(std::span<const pollfd> bells) noexcept {
  bool rung = false;
  for (const pollfd& bell : bells) rung = rung || bell.revents != 0;
  if (!rung) return false;
  // Clear first: another thread that parks may arm again at any moment, and that bell must stay
  // rung.
  for_bells(&Device::clear_event);
  progress_.counters().doorbells.add();
  progress_.attendance().disarm();  // this epoch is used up
  return true;
}

void Parking::end_answer(bool drained) noexcept {
  if (!drained) for_bells(&Device::ring);
}

Parking::~Parking() {
  if (owns_doorbells_) {
    progress_.attendance().give_up_doorbells();
  } else {
    progress_.attendance().unpark();
  }
  SpinBudget::mine().slept(progress_.spin_us() * 1000);
}

}  // namespace sidestep::engine

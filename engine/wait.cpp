#include "engine/wait.hpp"

#include "engine/connection/connection.hpp"

namespace sidestep::engine {

SpinBudget& SpinBudget::mine() noexcept {
  static constinit thread_local SpinBudget budget;
  return budget;
}

uint64_t yield(Node& node, uint64_t now) noexcept {
  node.counters().yields.add();
  sys::sched_yield();
  const uint64_t back = now_ns();
  if (node.crowding().yielded(now, back, static_cast<int>(node.attendance().polling())))
    node.counters().rests.add();
  return back;
}

Napping::Napping(Node& node) noexcept : node_(node) {
  node_.counters().parks.add();
}

Napping::~Napping() {
  SpinBudget::mine().slept(uint64_t{node_.config().spin_us} * 1000);
}

Endpoint* waker_of(const Node& node, const Stream& stream) noexcept {
  if (!stream.is_bound() || !stream.shares_host() || stream.rx_carrier() != Carrier::engine ||
      node.has_deferred() || node.posting().is_starved() || !Sleeper::can_nap())
    return nullptr;
  Endpoint& endpoint = stream.connection()->endpoint();
  return endpoint.wakes_readers() ? &endpoint : nullptr;
}

Nap prepare_nap(Node& node, Endpoint& waker, const Stream& stream, Waiter& waiter) noexcept {
  const Nap nap = waker.nap(stream.id());
  waiter.nap(nap);
  // The nap does not report what came before.
  if (waker.may_have_received()) node.drain(node.lane_of(*stream.connection()));
  return nap;
}

Parking::Parking(Node& node, bool can_lead) noexcept : node_(node) {
  node_.counters().parks.add();
  const bool alone = node_.attendance().park();
  if (can_lead && alone)
    for (const auto& device : node_.devices())
      if (device->rings_any_thread() && count_ < kBells)
        bells_[count_++] = {device->event_fd(), POLLIN, 0};
  leads_ = count_ != 0 && node_.attendance().lead();
  if (!leads_) count_ = 0;
  rearm();
}

void Parking::for_bells(void (Device::*call)() noexcept) noexcept {
  for (const auto& device : node_.devices())
    if (device->rings_any_thread()) (device.get()->*call)();
}

void Parking::rearm() noexcept {
  // A thread that spins now dispatches for us, and arms when it leaves (Attendance). If the peers
  // already ring, they wake the thread that leads, or else the progress thread.
  node_.attendance().rearm();
}

bool Parking::begin_answer(std::span<const pollfd> bells) noexcept {
  bool rung = false;
  for (const pollfd& bell : bells) rung = rung || bell.revents != 0;
  if (!rung) return false;
  // Clear first: another thread that parks may arm again at any moment, and that bell must stay
  // rung.
  for_bells(&Device::clear_event);
  node_.counters().doorbells.add();
  node_.attendance().disarm();  // this epoch is used up
  return true;
}

void Parking::end_answer(bool drained) noexcept {
  if (!drained) for_bells(&Device::ring);
}

Parking::~Parking() {
  if (leads_) {
    node_.attendance().stop_leading();
  } else {
    node_.attendance().unpark();
  }
  SpinBudget::mine().slept(uint64_t{node_.config().spin_us} * 1000);
}

}  // namespace sidestep::engine

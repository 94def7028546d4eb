#include "engine/progress/attendance.hpp"

#include "engine/base/clock.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/progress_thread.hpp"

namespace sidestep::engine {

bool Attendance::is_armed() const noexcept {
  for (const auto& device : progress_.devices())
    if (!device->is_armed()) return false;
  return true;
}

bool Attendance::is_attended() const noexcept {
  return is_armed() &&
         (doorbells_owned_.load(std::memory_order_seq_cst) || progress_.thread().listens());
}

void Attendance::arm_and_poll() noexcept {
  // Listen before arming: a thread that finds the devices armed does nothing more. If a thread
  // owns the doorbells, it makes the progress thread listen when it goes on.
  if (!doorbells_owned_.load(std::memory_order_seq_cst)) progress_.thread().listen(true);
  for (const auto& device : progress_.devices()) device->arm();
  // A thread that polls at this moment may be past what was posted before the peers could see
  // `armed`, and nobody would ring for that. Many threads get here at once; they do not wait for
  // each other.
  progress_.drain();
}

void Attendance::disarm() noexcept {
  for (const auto& device : progress_.devices()) device->disarm();
}

void Attendance::see_to_sleepers() noexcept {
  // seq_cst: either a thread that parks now sees that nobody looks and arms, or we see it parked.
  const bool needless =
      parked() == 0 && !has_unseen() && (!expects_moves() || progress_.thread().looks_often());
  if (!needless && !is_attended()) arm_and_poll();
}

bool Attendance::own_doorbells() noexcept {
  if (doorbells_owned_.exchange(true, std::memory_order_seq_cst)) return false;
  progress_.thread().listen(false);
  return true;
}

void Attendance::give_up_doorbells() noexcept {
  // Nobody should ring for a thread that is awake. Disarm before giving up `doorbells_owned_`: the
  // next owner finds that.
  if (parked() == 1 && !has_unseen() && !anyone_looks())
    for (const auto& device : progress_.devices())
      if (device->rings_any_thread()) device->disarm();
  doorbells_owned_.store(false, std::memory_order_seq_cst);
  unpark();
  // Threads that parked beside the owner counted themselves before they found `doorbells_owned_`,
  // so this load sees them.
  if (parked() != 0 || has_unseen()) {
    progress_.thread().listen(true);
    rearm();
  }
}

void Attendance::expect_moves() noexcept {
  // seq_cst: the progress thread loads this again after it has stored that it no longer looks often
  // (ProgressThread::is_to_look_often()), and see_to_sleepers() reads the two in the other order.
  // So nobody relies on a progress thread that has stopped looking.
  moves_until_.store(now_ns() + 200'000'000, std::memory_order_seq_cst);
  if (!anyone_looks() && !is_attended()) arm_and_poll();
}

void Attendance::check_moves(uint64_t now) noexcept {
  uint64_t until = moves_until_.load(std::memory_order_relaxed);
  if (until != 0 && until <= now)
    moves_until_.compare_exchange_strong(until, 0, std::memory_order_relaxed);
}

}  // namespace sidestep::engine

#include "engine/progress/alarm.hpp"

#include <sys/eventfd.h>

#include <mutex>

#include "engine/base/lock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

// The first belongs to the doorbell owner, and the others are shared. If there is only the
// first, all threads share it.
constexpr int kAlarms = 3;
constinit Alarm g_alarms[kAlarms];
constinit Mutex g_lock;

bool open(Alarm& alarm) noexcept {
  if (alarm.fd < 0) alarm.fd = private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return alarm.fd >= 0;
}

/// The alarm with the fewest sleepers among those that do not ring.
Alarm* find_locked(bool owns_doorbells) noexcept {
  const auto rings = [](const Alarm& alarm) {
    return alarm.fd < 0 || alarm.called.load(std::memory_order_relaxed) != 0;
  };
  if (owns_doorbells && g_alarms[0].sleepers == 0 && !rings(g_alarms[0])) return &g_alarms[0];
  Alarm* found = nullptr;
  for (int i = g_alarms[1].fd < 0 ? 0 : 1; i < kAlarms; ++i) {
    Alarm& alarm = g_alarms[i];
    if (!rings(alarm) && (found == nullptr || alarm.sleepers < found->sleepers)) found = &alarm;
  }
  return found;
}

void write_one(const Alarm& alarm) noexcept {
  const uint64_t one = 1;
  sys::write(alarm.fd, &one, sizeof one);
}

}  // namespace

int AlarmPlace::enter(bool owns_doorbells) noexcept {
  leave(false);  // in case a handler has left the last sleep by longjmp()
  const std::lock_guard guard(g_lock);
  // In a child of fork() that has no node.
  if (g_alarms[0].fd < 0) open(g_alarms[0]);
  Alarm* const alarm = find_locked(owns_doorbells);
  if (alarm != nullptr) {
    ++alarm->sleepers;
    alarm_ = alarm;
  }
  return alarm != nullptr ? alarm->fd : -1;
}

void AlarmPlace::leave(bool readable) noexcept {
  Alarm* const alarm = alarm_;  // only the owner changes it
  if (alarm == nullptr) return;
  bool drains = false;
  {
    const std::lock_guard guard(g_lock);
    alarm_ = nullptr;
    --alarm->sleepers;
    if (called_) alarm->called.fetch_sub(1, std::memory_order_relaxed);
    // This also drains what a caller wrote after the sleeper that it meant had left.
    drains = (called_ || readable) && alarm->called.load(std::memory_order_relaxed) == 0;
    called_ = false;
  }
  if (!drains) return;
  uint64_t count = 0;
  sys::read(alarm->fd, &count, sizeof count);
  // seq_cst pairs with the addition in ring(): if a caller's write was taken here, this load sees
  // that its sleeper is called.
  if (alarm->called.load(std::memory_order_seq_cst) != 0) write_one(*alarm);
}

void AlarmPlace::ring() noexcept {
  Alarm* alarm = nullptr;
  {
    const std::lock_guard guard(g_lock);
    alarm = alarm_;
    if (alarm != nullptr && !called_) {
      called_ = true;
      alarm->called.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  // Not under the lock: the thread that is woken may take the processor at once.
  if (alarm != nullptr) write_one(*alarm);
}

bool open_first_alarm() noexcept {
  bool opened = false;
  {
    const std::lock_guard guard(g_lock);
    opened = open(g_alarms[0]);
  }
  return opened && private_fd_make_reserve(g_alarms[0].fd, 1);
}

int first_alarm() noexcept {
  return g_alarms[0].fd;  // written before there is a node
}

void open_more_alarms() noexcept {
  const std::lock_guard guard(g_lock);
  for (Alarm& alarm : g_alarms) open(alarm);
}

bool forget_idle_alarms() noexcept {
  const std::lock_guard guard(g_lock);
  bool idle = true;
  for (const Alarm& alarm : g_alarms) idle = idle && alarm.sleepers == 0;
  if (idle)
    for (Alarm& alarm : g_alarms) alarm.fd = -1;
  return idle;
}

void forget_alarms_after_fork() noexcept {
  g_lock.reset_after_fork();
  for (Alarm& alarm : g_alarms) {
    alarm.fd = -1;
    alarm.sleepers = 0;
    alarm.called.store(0, std::memory_order_relaxed);
  }
}

}  // namespace sidestep::engine

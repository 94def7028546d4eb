#include "engine/progress/progress_thread.hpp"

#include <cstring>
#include <mutex>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_threads.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/progress/alarm.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/stream_upkeep.hpp"
#include "engine/progress/tick.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kDoorbell = ~uint64_t{0};
constexpr uint64_t kEnd = kDoorbell - 1;
}  // namespace

bool ProgressThread::start() noexcept {
  return start_engine_thread(entry, this, "sidestep-prog");
}

bool ProgressThread::open() noexcept {
  if (epoll_fd_.load(std::memory_order_relaxed) >= 0) return true;
  const int fd = private_fd_adopt(sys::epoll_create());
  if (fd < 0) {
    if (!std::exchange(told_, true))
      log(LogLevel::warn, "no connection can be made now, because epoll_create failed: %s",
          std::strerror(-fd));
    return false;
  }
  epoll_fd_.store(fd, std::memory_order_release);
  wake_unopened();
  return true;
}

void ProgressThread::wake_unopened() noexcept {
  // release pairs with the acquire in sleep_unopened(): what it is woken for is seen.
  wake_ups_.fetch_add(1, std::memory_order_release);
  sys::futex_wake(&wake_ups_, 1);
}

void ProgressThread::sleep_unopened() noexcept {
  const uint32_t seen = wake_ups_.load(std::memory_order_acquire);
  if (epoll_fd_.load(std::memory_order_acquire) >= 0 || engine_threads_are_to_end()) return;
  constexpr timespec kSecond{1, 0};
  sys::futex_wait(&wake_ups_, seen, &kSecond);
}

bool ProgressThread::add(int fd, uint64_t data, uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = data;
  const int set = epoll_fd_.load(std::memory_order_acquire);
  const int result = sys::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  if (result < 0 && result != -EEXIST) {
    log(LogLevel::warn, "a descriptor cannot be watched, because epoll_ctl failed: %s",
        std::strerror(-result));
    return false;
  }
  return true;
}

bool ProgressThread::watch_device(const Device& device) noexcept {
  // Threads that already sleep do not know of this device.
  listen(true);
  return add(device.event_fd(), kDoorbell, EPOLLIN);
}

void ProgressThread::listen(bool listens) noexcept {
  if (listens_.load(std::memory_order_seq_cst) == listens) return;
  const std::lock_guard guard(listen_lock_);
  if (listens_.load(std::memory_order_relaxed) != listens) {
    // Level-triggered: a doorbell that was rung before is heard.
    epoll_event event{};
    event.events = listens ? uint32_t{EPOLLIN} : 0;
    event.data.u64 = kDoorbell;
    for (const auto& device : progress_.devices())
      if (device->rings_any_thread())
        sys::epoll_ctl(epoll_fd_.load(std::memory_order_acquire), EPOLL_CTL_MOD, device->event_fd(),
                       &event);
    listens_.store(listens, std::memory_order_seq_cst);
  }
}

void ProgressThread::watch_anchor(const Stream& stream) noexcept {
  add(stream.anchor(), uint64_t{stream.generation()} << 32 | stream.id(),
      EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
}

void ProgressThread::unwatch_anchor(int anchor) noexcept {
  const int set = epoll_fd_.load(std::memory_order_acquire);
  epoll_event ignored{};
  if (set >= 0) sys::epoll_ctl(set, EPOLL_CTL_DEL, anchor, &ignored);
}

void ProgressThread::wake_to_end() noexcept {
  wake_unopened();
  // An eventfd is writable at any time.
  if (epoll_fd_.load(std::memory_order_acquire) >= 0) add(first_alarm(), kEnd, EPOLLOUT);
}

bool ProgressThread::is_at_end(uint64_t now) noexcept {
  constexpr uint64_t kEvery = 1'000'000'000;
  if (engine_threads_are_to_end()) return true;
  if (now < look_at_) return false;
  look_at_ = now + kEvery;
  if (!only_engine_threads_are_left()) return false;
  // The last thread of the program has ended, and this would have been the end of the process.
  if (on_end_of_program_threads != nullptr) on_end_of_program_threads();
  die_as_program_threads();
  ask_engine_threads_to_end();
  jobs_.wake();
  return true;
}

void* ProgressThread::entry(void* self) noexcept {
  ask_for_short_slices();
  static_cast<ProgressThread*>(self)->run();
  return nullptr;
}

bool ProgressThread::poll_unattended(const std::array<uint64_t, kLanes>& seen,
                                     bool& found) noexcept {
  bool all = true;
  for (Lane& lane : progress_.recv_lock().open()) {
    if (!progress_.recv_lock().is_used(lane)) continue;
    const bool unattended = lane.polls.get() == seen[lane.number];
    all = all && unattended;
    if (!unattended) continue;
    progress_.want_all(lane);
    found = progress_.poll(lane) || found;
  }
  return all;
}

bool ProgressThread::is_to_look_often() noexcept {
  bool often = progress_.attendance().expects_moves();
  if (often == looks_often_.load(std::memory_order_relaxed)) return often;
  looks_often_.store(often, std::memory_order_seq_cst);
  // A thread in Attendance::see_to_sleepers() may have found moves expected, then read looks_often_
  // before this store, and not armed. In that case this load finds them expected, too.
  if (!often && progress_.attendance().expects_moves()) {
    often = true;
    looks_often_.store(true, std::memory_order_seq_cst);
  }
  return often;
}

void ProgressThread::run() noexcept {
  constexpr int kDeferred = 5;
  constexpr int kShortTick = 20;
  int tick = kShortTick;
  constexpr int kTurn = 64;
  bool stalled = false;
  bool busy = false;
  std::array<uint64_t, kLanes> polls_seen{};
  Attendance& attendance = progress_.attendance();
  epoll_event events[64];
  while (epoll_fd_.load(std::memory_order_acquire) < 0) {
    sleep_unopened();
    const uint64_t now = now_ns();
    if (is_at_end(now)) return;
    attendance.check_moves(now);  // while moves are expected, each call on a kernel stream polls
    upkeep_.bring_back(now);      // streams for which there was no descriptor
  }
  const int set = epoll_fd_.load(std::memory_order_relaxed);
  for (;;) {
    // Whoever polls looks at work that was put off until the device has done something; this thread
    // does so if nobody polls.
    const int rest = progress_.deferred().has_any() ? kDeferred
                     : upkeep_.has_suspects()       ? kShortTick
                                                    : tick;
    const bool often = is_to_look_often();
    const int timeout = busy ? 0 : stalled || often ? 1 : std::min(rest, tick);
    const int count = sys::epoll_pwait(set, events, 64, timeout, nullptr);
    bool rung = busy;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kDoorbell) {
        rung = true;
      } else if (events[i].data.u64 != kEnd) {
        const uint64_t key = events[i].data.u64;
        upkeep_.anchor_event(static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                             events[i].events);
      }
    }
    if (rung) {
      for (const auto& device : progress_.devices()) device->clear_event();
      if (!busy) progress_.counters().doorbells.add();
      // This epoch is used up: whoever stops polling from now on must see that nothing is armed.
      attendance.disarm();
      // Do not poll until a fast peer stops: there is more to do here.
      int polls = 0;
      while (polls < kTurn && progress_.poll()) ++polls;
      busy = polls == kTurn;
      // The peers ring once for each armed epoch. A new one is due when somebody sleeps and nobody
      // polls. For threads that neither sleep nor poll, the timer is enough: it arms when they have
      // not polled for a tick. Otherwise the peers would ring a program that sends and receives
      // without blocking for what it is about to find by itself.
      if (!busy && !attendance.anyone_looks() && attendance.others_sleep())
        attendance.arm_and_poll();
      tick = kShortTick;
    } else if (count == 0) {
      if (progress_.deferred().has_any()) progress_.poll();
      bool found = false;
      const bool nobody_polls = poll_unattended(polls_seen, found);
      // It is not enough that the devices are armed: the thread to be rung may have gone on without
      // needing that. Nor is it enough that they are attended: all peers have the doorbell, and any
      // of them can take another's ring away.
      const bool attended = attendance.is_attended();
      if (found && !often) progress_.counters().rescues.add();
      if (nobody_polls) {
        // The doorbell owner has been rung, but has no processor or is stopped.
        if (found && attended) listen(true);
        // A peer that has rung for an epoch does not do so again.
        if (found || !attended) attendance.arm_and_poll();
      }
      const bool is_idle = attendance.is_attended() && nobody_polls;
      tick = is_idle ? std::min(2 * tick, kLongestTick) : kShortTick;
      for (const Lane& lane : progress_.recv_lock().open())
        polls_seen[lane.number] = lane.polls.get();
    }
    const uint64_t now = now_ns();
    if (is_at_end(now)) return;
    attendance.check_moves(now);
    if (const size_t left = Sleeper::wake_left(now); left != 0)
      progress_.counters().rescues.add(left);
    stalled = progress_.relieve_peers(now);
    upkeep_.bring_back(now);
    upkeep_.keep_anchors_alive(now);
    if (upkeep_.has_suspects()) upkeep_.check_suspects(now);
  }
}

}  // namespace sidestep::engine

#include "engine/progress/waiter.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include <mutex>
#include <new>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/thread_end.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

// ---- streams

void Waiter::on_event(Stream& stream, uint32_t events) noexcept {
  // The caller has passed a full barrier since what it reports was there. A ring since the nap was
  // prepared wakes the owner, or came before its sleep, which the kernel then refuses. If the two
  // numbers do not belong to the same nap, the owner has yet to look.
  if ((events & kArrived) != 0 && naps_.load(std::memory_order_seq_cst)) {
    Connection* const connection = stream.connection();
    const uint32_t value = value_.load(std::memory_order_seq_cst);
    if (connection != nullptr && connection->endpoint().has_rung(stream.id(), value)) {
      sleeper_.leave_to_peer();
      return;
    }
  }
  sleeper_.wake();
}

// ---- threads

namespace {
Mutex g_pool_lock;
Sleeper* g_pool = nullptr;
constinit std::atomic<Sleeper*> g_sleepers{nullptr};  // under that lock, except to read it
}  // namespace

constinit thread_local Sleeper* Sleeper::of_thread_ = nullptr;

Sleeper* Sleeper::mine() noexcept {
  static constinit thread_local ThreadEnd thread_end{[]() noexcept { give_back(); }};
  if (of_thread_ == nullptr) {
    of_thread_ = take();
    if (of_thread_ != nullptr) at_thread_end(thread_end);
  }
  return of_thread_;
}

Sleeper* Sleeper::take() noexcept {
  {
    const std::lock_guard guard(g_pool_lock);
    if (g_pool != nullptr) return std::exchange(g_pool, g_pool->next_free_);
  }
  Sleeper* const sleeper = new (std::nothrow) Sleeper;
  if (sleeper == nullptr) return nullptr;
  const std::lock_guard guard(g_pool_lock);
  sleeper->enlist_locked();
  return sleeper;
}

void Sleeper::enlist_locked() noexcept {
  next_ = g_sleepers.load(std::memory_order_relaxed);
  g_sleepers.store(this, std::memory_order_release);  // pairs with wake_left()
}

void Sleeper::give_back() noexcept {
  Sleeper* const sleeper = std::exchange(of_thread_, nullptr);
  const std::lock_guard guard(g_pool_lock);
  sleeper->next_free_ = g_pool;
  g_pool = sleeper;
}

void Sleeper::forget_after_fork() noexcept {
  g_pool_lock.reset_after_fork();
  g_pool = nullptr;
  forget_alarms_after_fork();
  g_sleepers.store(nullptr, std::memory_order_relaxed);
  if (of_thread_ == nullptr) return;
  of_thread_->place_ = {};
  of_thread_->enlist_locked();
}

void Sleeper::prepare(Way way) noexcept {
  // relaxed: a thread that wakes the owner has changed the word from 0, and so sees what was stored
  // before. A late one may see another way, but then it has nothing left to wake.
  way_.store(way, std::memory_order_relaxed);
  left_.store(Left::no, std::memory_order_relaxed);
  alarm_fd_ = way == Way::word ? -1 : place_.enter(way == Way::doorbells);
  word_.store(kAsleep, std::memory_order_seq_cst);
}

int Sleeper::sleep(const timespec* timeout) noexcept {
  const long result =
      sys::call(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kAsleep, timeout, nullptr, 0);
  return result == -EINTR ? -EINTR : result == -ETIMEDOUT ? 0 : 1;
}

size_t Sleeper::wake_left(uint64_t now) noexcept {
  constexpr uint64_t kLong = 20'000'000;
  // All of this is relaxed: what is missed now is found the next time.
  static constinit std::atomic<uint64_t> looked{0};
  if (now - looked.load(std::memory_order_relaxed) < kLong ||
      !some_left.exchange(false, std::memory_order_relaxed))
    return 0;
  looked.store(now, std::memory_order_relaxed);
  size_t count = 0;
  Sleeper* sleeper = g_sleepers.load(std::memory_order_acquire);  // pairs with enlist_locked()
  for (; sleeper != nullptr; sleeper = sleeper->next_) {
    const Left left = sleeper->left_.load(std::memory_order_relaxed);
    if (left == Left::no) continue;
    if (left == Left::yes) {
      sleeper->left_.store(Left::for_long, std::memory_order_relaxed);
      some_left.store(true, std::memory_order_relaxed);
    } else if (sleeper->word_.load(std::memory_order_relaxed) == kAsleep) {
      sleeper->wake();
      ++count;
    }
  }
  return count;
}

namespace {

/// As in linux/futex.h since Linux 5.16; this may be built with older headers.
struct FutexToWaitFor {
  uint64_t value;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;
};
constexpr long kFutexWaitv = 449;
constexpr uint32_t kFutexSize32 = 2;
constexpr uint32_t kFutexPrivate = 128;

}  // namespace

bool Sleeper::can_nap() noexcept {
  // relaxed: every thread that asks first finds the same answer.
  static constinit std::atomic<int> known{0};
  int answer = known.load(std::memory_order_relaxed);
  if (answer == 0) {
    // The call is not tried under a system call filter (seccomp) that the program was started with:
    // a filter older than this call may kill the process for it. If a program enters a filter
    // itself, the engine has ended before that.
    const bool filtered = sys::call(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0) > 0;
    answer = !filtered && sys::call(kFutexWaitv, nullptr, 0, 0, nullptr, 0) == -EINVAL ? 1 : -1;
    known.store(answer, std::memory_order_relaxed);
  }
  return answer > 0;
}

int Sleeper::nap(std::span<const Nap> naps, const timespec* timeout) noexcept {
  FutexToWaitFor words[1 + kMostNaps];
  words[0] = {kAsleep, reinterpret_cast<uint64_t>(&word_), kFutexSize32 | kFutexPrivate, 0};
  for (size_t i = 0; i < naps.size(); ++i)
    words[1 + i] = {naps[i].value, reinterpret_cast<uint64_t>(naps[i].word), kFutexSize32, 0};
  timespec until{};
  if (timeout != nullptr) {
    constexpr uint64_t kSecond = 1'000'000'000;
    const uint64_t end = now_ns() + static_cast<uint64_t>(timeout->tv_sec) * kSecond +
                         static_cast<uint64_t>(timeout->tv_nsec);
    until = {static_cast<time_t>(end / kSecond), static_cast<long>(end % kSecond)};
  }
  const long result = sys::call(kFutexWaitv, words, 1 + naps.size(), 0,
                                timeout != nullptr ? &until : nullptr, CLOCK_MONOTONIC);
  return result == -EINTR ? -EINTR : result == -ETIMEDOUT ? 0 : 1;
}

int Sleeper::poll(std::span<pollfd> fds, size_t alarm, const timespec* timeout,
                  const sigset_t* mask) noexcept {
  constexpr timespec kMoment{0, 1'000'000};
  fds[alarm] = {alarm_fd_, POLLIN, 0};
  // Without an alarm nothing would wake the thread.
  const bool briefly = alarm_fd_ < 0 && (timeout == nullptr || timeout->tv_sec > 0 ||
                                         timeout->tv_nsec > kMoment.tv_nsec);
  int result = sys::ppoll(fds.data(), fds.size(), briefly ? &kMoment : timeout, mask);
  // The program's limit of descriptors is lower than the number that it has, or there is no memory.
  const bool refused = result == -EINVAL || result == -ENOMEM;
  if (refused) {
    for (pollfd& fd : fds) fd.revents = 0;
    result = sys::ppoll(nullptr, 0, &kMoment, mask);
  }
  if (result == 0 && (briefly || refused)) result = 1;
  place_.leave(fds[alarm].revents != 0);
  return result;
}

void Sleeper::finish() noexcept {
  word_.store(kAwake, std::memory_order_seq_cst);
  // In case the owner did not sleep in the end.
  if (way_.load(std::memory_order_relaxed) != Way::word) place_.leave(false);
}

void Sleeper::wake_now() noexcept {
  // The owner is woken by what it dispatches itself, before it sleeps or when a signal interrupts
  // the sleep: the word is enough, since the owner looks once more.
  if (this == of_thread_) return;
  if (way_.load(std::memory_order_relaxed) == Way::word) {
    sys::futex_wake(&word_, 1);
  } else {
    place_.ring();
  }
}

// ---- sets

namespace {
Mutex g_event_lock;
EventSleeper* g_events = nullptr;
}  // namespace

EventSleeper& EventSleeper::take() {
  EventSleeper* sleeper = nullptr;
  {
    const std::lock_guard guard(g_event_lock);
    sleeper = g_events;
    if (sleeper != nullptr) g_events = sleeper->next_free_;
  }
  if (sleeper == nullptr) sleeper = new EventSleeper;
  const int fd = private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const std::lock_guard guard(sleeper->lock_);
  sleeper->fd_ = fd;
  sleeper->epoch_ = private_fd_epoch();
  return *sleeper;
}

void EventSleeper::give_back(EventSleeper& sleeper) noexcept {
  sleeper.stay_awake();
  {
    const std::lock_guard guard(sleeper.lock_);
    const int fd = std::exchange(sleeper.fd_, -1);
    // In a child of fork() it is already closed.
    if (sleeper.epoch_ == private_fd_epoch()) private_fd_close(fd);
  }
  const std::lock_guard guard(g_event_lock);
  sleeper.next_free_ = g_events;
  g_events = &sleeper;
}

void EventSleeper::forget_after_fork() noexcept {
  g_event_lock.reset_after_fork();
  g_events = nullptr;
}

void EventSleeper::wake_now() noexcept {
  const uint64_t one = 1;
  const std::lock_guard guard(lock_);
  if (fd_ >= 0) sys::write(fd_, &one, sizeof one);
}

void EventSleeper::finish() noexcept {
  word_.store(kAwake, std::memory_order_seq_cst);
  // Always read: a wake-up for an earlier sleep may have come late.
  uint64_t count = 0;
  sys::read(fd_, &count, sizeof count);
}

}  // namespace sidestep::engine

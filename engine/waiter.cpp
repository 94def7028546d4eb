#include "engine/waiter.hpp"

#include <sys/eventfd.h>

#include <new>
#include <utility>

#include "engine/private_fd.hpp"
#include "engine/thread_end.hpp"

namespace sidestep::engine {
namespace {

Mutex g_pool_lock;
Sleeper* g_pool = nullptr;
constinit thread_local Sleeper* sleeper_of_thread = nullptr;
constinit thread_local ThreadEnd thread_end{
    []() noexcept { Sleeper::give_back(*std::exchange(sleeper_of_thread, nullptr)); }};

}  // namespace

Sleeper& Sleeper::mine() noexcept {
  if (sleeper_of_thread == nullptr) {
    sleeper_of_thread = &take();
    at_thread_end(thread_end);
  }
  sleeper_of_thread->open();
  return *sleeper_of_thread;
}

void Sleeper::open() noexcept {
  if (epoch_ == private_fd_epoch()) return;
  fd_ = private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd_ >= 0) epoch_ = private_fd_epoch();
}

void Sleeper::forget_after_fork() noexcept {
  g_pool_lock.reset_after_fork();
  g_pool = nullptr;
}

Sleeper& Sleeper::take() noexcept {
  g_pool_lock.lock();
  Sleeper* sleeper = g_pool;
  if (sleeper != nullptr) g_pool = sleeper->next_free_;
  g_pool_lock.unlock();
  if (sleeper == nullptr) sleeper = new Sleeper;
  sleeper->open();
  return *sleeper;
}

void Sleeper::give_back(Sleeper& sleeper) noexcept {
  g_pool_lock.lock();
  sleeper.next_free_ = g_pool;
  g_pool = &sleeper;
  g_pool_lock.unlock();
}

void Sleeper::wake() noexcept {
  if (woken_.exchange(true, std::memory_order_seq_cst)) return;
  WakeBatch* batch = WakeBatch::current_;
  if (batch != nullptr && batch->count_ < WakeBatch::kRoom) {
    batch->sleepers_[batch->count_++] = this;
  } else {
    wake_now();
  }
}

void Sleeper::wake_now() noexcept {
  const uint64_t one = 1;
  sys::write(fd_, &one, sizeof one);
}

void Sleeper::finish() noexcept {
  woken_.store(true, std::memory_order_seq_cst);
  // Always: a wake-up of an earlier sleep may have come late.
  uint64_t count = 0;
  sys::read(fd_, &count, sizeof count);
}

constinit thread_local WakeBatch* WakeBatch::current_ = nullptr;

void WakeBatch::wake_all() noexcept {
  for (size_t i = 0; i < count_; ++i) sleepers_[i]->wake_now();
}

}  // namespace sidestep::engine

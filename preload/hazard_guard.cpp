#include "preload/hazard_guard.hpp"

#include <linux/membarrier.h>

#include <new>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/thread_end.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

constinit thread_local HazardRecord* HazardGuard::record_of_thread_ = nullptr;

namespace {

std::atomic<HazardRecord*> g_records{nullptr};
// What wiped_page says about membarrier in the process that wrote it there.
std::atomic<bool> g_has_membarrier{false};

bool register_for_barriers() noexcept {
  return sys::call(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}

void barrier_in_all_threads() noexcept {
  // A child of fork may have to register anew.
  while (sys::call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == -EPERM &&
         register_for_barriers()) {
  }
}

}  // namespace

HazardRecord* HazardGuard::make_record() noexcept {
  // Done by each thread: the initialization of a static variable could be under way in some thread
  // at fork.
  const bool registered = register_for_barriers();
  g_has_membarrier.store(registered, std::memory_order_relaxed);
  engine::wiped_page.has_membarrier.store(registered, std::memory_order_relaxed);
  HazardRecord* record = g_records.load(std::memory_order_acquire);
  for (; record != nullptr; record = record->next) {
    bool used = false;
    if (record->in_use.compare_exchange_strong(used, true, std::memory_order_acq_rel)) break;
  }
  if (record == nullptr) {
    record = new (std::nothrow) HazardRecord;
    if (record == nullptr) return nullptr;
    record->next = g_records.load(std::memory_order_relaxed);
    // release pairs with the acquire of threads that walk the list.
    while (!g_records.compare_exchange_weak(record->next, record, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
  }
  record_of_thread_ = record;
  static constinit thread_local engine::ThreadEnd thread_end{[]() noexcept {
    // release pairs with the exchange above: the record's next thread finds it as this one leaves
    // it.
    std::exchange(record_of_thread_, nullptr)->in_use.store(false, std::memory_order_release);
  }};
  at_thread_end(thread_end);
  return record;
}

void HazardGuard::forget_after_fork() noexcept {
  engine::wiped_page.has_membarrier.store(g_has_membarrier.load(std::memory_order_relaxed),
                                          std::memory_order_relaxed);
  for (HazardRecord* record = g_records.load(std::memory_order_relaxed); record != nullptr;
       record = record->next) {
    if (record == record_of_thread_) continue;
    record->announced.store(nullptr, std::memory_order_relaxed);
    record->in_use.store(false, std::memory_order_relaxed);
  }
}

void HazardGuard::wait_for_end(const Socket& socket) noexcept {
  if (engine::wiped_page.has_membarrier.load(std::memory_order_relaxed)) {
    barrier_in_all_threads();
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  const HazardRecord* own = record_of_thread_;
  // A guard holds for microseconds, or milliseconds if its thread has lost its processor. One that
  // never ends was left by a longjmp() out of a handler that could not wait: it no longer touches
  // the socket.
  const uint64_t limit = engine::now_ns() + 10'000'000'000;
  for (const HazardRecord* record = g_records.load(std::memory_order_acquire); record != nullptr;
       record = record->next) {
    // This thread can have a guard only if it is in a signal handler that closes; it cannot
    // wait for itself.
    while (record != own && record->announced.load(std::memory_order_acquire) == &socket &&
           engine::now_ns() < limit)
      sys::sched_yield();
  }
}

}  // namespace sidestep::preload

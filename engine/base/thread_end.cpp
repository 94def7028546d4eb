#include "engine/base/thread_end.hpp"

#include <pthread.h>

#include <atomic>
#include <utility>

#include "engine/base/held_locks.hpp"

namespace sidestep::engine {
namespace {

constexpr int kNone = -1;
constinit std::atomic<int> g_key{kNone};
constinit thread_local ThreadEnd* listed = nullptr;

void run_listed(void*) noexcept {
  while (listed != nullptr) {
    enter_lock();  // handlers wait
    ThreadEnd* const end = std::exchange(listed, listed->next);
    end->is_listed = false;
    leave_lock();
    end->run();
  }
}

}  // namespace

void prepare_thread_ends() noexcept {
  pthread_key_t key = 0;
  if (g_key.load(std::memory_order_relaxed) != kNone || pthread_key_create(&key, run_listed) != 0)
    return;
  int none = kNone;
  // relaxed: the number is all there is to know.
  if (!g_key.compare_exchange_strong(none, static_cast<int>(key), std::memory_order_relaxed))
    pthread_key_delete(key);
}

void at_thread_end(ThreadEnd& end) noexcept {
  if (end.is_listed) return;
  prepare_thread_ends();  // other libraries' constructors run before ours
  const int key = g_key.load(std::memory_order_relaxed);
  // The program has used up all keys: what the thread has is kept forever.
  if (key == kNone) return;
  enter_lock();  // handlers wait
  end.next = std::exchange(listed, &end);
  end.is_listed = true;
  pthread_setspecific(static_cast<pthread_key_t>(key), &listed);
  leave_lock();
}

}  // namespace sidestep::engine

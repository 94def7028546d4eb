#include "engine/base/cancellation.hpp"

#include <new>
#include <utility>

#include "engine/base/sys.hpp"
#include "engine/base/thread_end.hpp"
#include "engine/base/wakeable.hpp"

namespace sidestep::engine {
namespace {

/// One for each thread that has ever slept; never freed, but reused by later threads.
struct Record {
  std::atomic<pthread_t> thread{};
  std::atomic<long> id{0};
  std::atomic<bool> asked{false};
  std::atomic<bool> asleep{false};
  std::atomic<Wakeable*> sleeper{nullptr};  // what it then sleeps with
  std::atomic<bool> in_use{true};
  Record* next = nullptr;
};

std::atomic<Record*> g_records{nullptr};
std::atomic<unsigned> g_epoch{1};  // differs in each child of a fork

/// The calling thread's record. Others may use the record when the thread has ended.
struct Mine {
  Record* record = nullptr;
  unsigned epoch = 0;
  Record* get() noexcept;
};
constinit thread_local Mine mine;

void forget_mine() noexcept {
  Record* const record = std::exchange(mine.record, nullptr);
  record->thread.store({}, std::memory_order_seq_cst);
  record->in_use.store(false, std::memory_order_release);  // pairs with the exchange in get()
}
constinit thread_local ThreadEnd thread_end{forget_mine};

// How many NotCancelled the thread is inside, and the program's cancel state outside them.
constinit thread_local unsigned depth = 0;
constinit thread_local int state_outside = PTHREAD_CANCEL_ENABLE;

Record* Mine::get() noexcept {
  const unsigned now = g_epoch.load(std::memory_order_relaxed);
  if (record != nullptr && epoch == now) return record;
  Record* found = g_records.load(std::memory_order_acquire);
  while (found != nullptr && found->in_use.exchange(true, std::memory_order_acq_rel))
    found = found->next;
  if (found == nullptr) {
    found = new (std::nothrow) Record;
    if (found == nullptr) return nullptr;
    found->next = g_records.load(std::memory_order_relaxed);
    while (!g_records.compare_exchange_weak(found->next, found, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
  }
  found->id.store(sys::call(SYS_gettid), std::memory_order_relaxed);
  found->asleep.store(false, std::memory_order_relaxed);
  found->thread.store(pthread_self(), std::memory_order_seq_cst);
  // seq_cst: either the thread that cancels this one finds the record, or this thread sees here
  // that somebody has canceled a thread, which may be this one.
  found->asked.store(threads_are_cancelled.load(std::memory_order_seq_cst),
                     std::memory_order_seq_cst);
  record = found;
  epoch = now;
  at_thread_end(thread_end);
  return record;
}

bool is_enabled() noexcept {
  if (depth != 0) return state_outside == PTHREAD_CANCEL_ENABLE;
  int state = PTHREAD_CANCEL_ENABLE;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_setcancelstate(state, nullptr);
  return state == PTHREAD_CANCEL_ENABLE;
}

/// The thread is inside no NotCancelled: any that are counted were left by a handler's longjmp().
void forget_left() noexcept {
  if (depth == 0) return;
  depth = 0;
  pthread_setcancelstate(state_outside, nullptr);
}

/// libc's signal for canceling. Its handler does nothing for a thread that is already canceled.
constexpr int kCancel = 32;

bool libc_handles_signal() noexcept {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } action{};
  return sys::call(SYS_rt_sigaction, kCancel, nullptr, &action, sizeof action.mask) == 0 &&
         action.handler != nullptr;
}

}  // namespace

std::atomic<bool> threads_are_cancelled{false};

void NotCancelled::begin(bool outermost) noexcept {
  begun_ = true;
  if (outermost) forget_left();
  if (depth++ == 0) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_outside);
}

void NotCancelled::restore() noexcept {
  begun_ = false;
  if (depth != 0 && --depth == 0) pthread_setcancelstate(state_outside, nullptr);
}

bool cancellation_is_due() noexcept {
  if (!threads_are_cancelled.load(std::memory_order_seq_cst)) return false;
  const Record* const record = mine.get();
  return record != nullptr && record->asked.load(std::memory_order_seq_cst) && is_enabled();
}

CancellableSleep::CancellableSleep(Wakeable* sleeper) noexcept {
  // seq_cst pairs with end_sleep_of_cancelled(): either that function finds the thread asleep, or
  // the look that follows finds that the thread has been asked.
  if (Record* const record = mine.get(); record != nullptr && is_enabled()) {
    record->sleeper.store(sleeper, std::memory_order_relaxed);
    record->asleep.store(true, std::memory_order_seq_cst);
  }
}

CancellableSleep::~CancellableSleep() {
  // relaxed: an extra signal does nothing.
  if (mine.record != nullptr) mine.record->asleep.store(false, std::memory_order_relaxed);
}

void end_sleep_of_cancelled(pthread_t thread) noexcept {
  const bool can_signal = libc_handles_signal();
  const long process = sys::call(SYS_getpid);
  for (Record* record = g_records.load(std::memory_order_seq_cst); record != nullptr;
       record = record->next) {
    if (!record->in_use.load(std::memory_order_acquire) ||
        record->thread.load(std::memory_order_seq_cst) != thread)
      continue;
    record->asked.store(true, std::memory_order_seq_cst);
    const long id = record->id.load(std::memory_order_relaxed);
    // The thread may end at any time. Its record may then belong to another thread, which the
    // signal would cancel; but that thread has another id.
    const auto is_asleep = [&] {
      return record->asleep.load(std::memory_order_seq_cst) &&
             record->asked.load(std::memory_order_seq_cst) &&
             record->thread.load(std::memory_order_seq_cst) == thread &&
             record->id.load(std::memory_order_relaxed) == id;
    };
    if (Wakeable* const sleeper = record->sleeper.load(std::memory_order_relaxed);
        sleeper != nullptr && is_asleep()) {
      // The thread prepares each sleep before it looks whether it has been asked. By now the
      // sleeper may belong to another thread, for which this is a spurious wake-up.
      sleeper->wake();
      return;
    }
    // A signal that comes between the thread's last look and its sleep is lost, so it is sent
    // again.
    constexpr int kMost = 10'000;
    for (int i = 0; can_signal && i < kMost && is_asleep(); ++i) {
      sys::call(SYS_tgkill, process, id, kCancel);
      const timespec moment{0, 100'000};
      sys::ppoll(nullptr, 0, &moment, nullptr);
    }
    return;
  }
}

void answer_cancellation() noexcept {
  forget_left();
  Record* const record = mine.get();
  // Before libc looks: whoever cancels the thread after that asks again.
  if (record != nullptr && is_enabled()) record->asked.store(false, std::memory_order_seq_cst);
}

void forget_cancellations_after_fork() noexcept {
  g_records.store(nullptr, std::memory_order_relaxed);
  g_epoch.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace sidestep::engine

#pragma once
/// Threads that the program cancels (pthread_cancel(3)) in a call on a stream.
///
/// libc cancels a thread by unwinding its stack, which would leave the work of the library half
/// done. So no thread is canceled inside the library. A cancellation request ends the sleep, the
/// call returns to its outermost frame, where nothing has to be undone, and there libc cancels the
/// thread (preload/cancellation_point.hpp). A program that never cancels a thread pays for one
/// load.
#include <pthread.h>

#include <atomic>

namespace sidestep::engine {

class Wakeable;

/// True once the program has canceled any thread.
extern std::atomic<bool> threads_are_cancelled;

/// From enter() to the end of its life, the calling thread cannot be canceled. Nests.
class NotCancelled {
 public:
  NotCancelled() noexcept = default;
  /// `outermost`: no other object can be alive, except those that a longjmp() has left behind.
  void enter(bool outermost) noexcept {
    // relaxed: a cancellation at this moment might as well have come before or after.
    if (threads_are_cancelled.load(std::memory_order_relaxed)) [[unlikely]]
      begin(outermost);
  }
  ~NotCancelled() {
    if (begun_) [[unlikely]]
      restore();
  }
  NotCancelled(const NotCancelled&) = delete;

 private:
  void begin(bool outermost) noexcept;
  void restore() noexcept;

  bool begun_ = false;
};

/// True if the calling thread has been asked to end and cancellation is enabled: the call must
/// return.
bool cancellation_is_due() noexcept;

/// Encloses the last look at cancellation_is_due() and the sleep after it. The sleep ends when the
/// thread is asked to end. With a `sleeper`, it ends because the sleeper is woken; without one, in
/// ppoll(2) or epoll_pwait(2), it ends with EINTR.
class CancellableSleep {
 public:
  explicit CancellableSleep(Wakeable* sleeper = nullptr) noexcept;
  ~CancellableSleep();
  CancellableSleep(const CancellableSleep&) = delete;
};

/// Called after pthread_cancel(). Ends the sleep of `thread`, if it is in one. Where that takes a
/// signal, waits until the sleep has ended, for a second at most.
void end_sleep_of_cancelled(pthread_t thread) noexcept;
/// Called outside every NotCancelled, before libc is asked whether the calling thread is canceled.
/// Withdraws the request of end_sleep_of_cancelled(), which is being answered now, unless the
/// program has disabled cancellation.
void answer_cancellation() noexcept;
/// Called in the child of a fork, where the threads of the parent do not exist.
void forget_cancellations_after_fork() noexcept;

}  // namespace sidestep::engine

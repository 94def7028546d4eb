#pragma once
/// Threads that the program cancels (pthread_cancel(3)) in a call on a stream.
///
/// libc cancels by unwinding the stack, and what is unwound here would be left half done. So a
/// thread is not cancelled inside the library: a sleep ends when it is asked for, the call returns
/// to its outermost frame, in which nothing has to be undone, and libc has its way there
/// (preload/cancellation_point.hpp). A program that never cancels a thread pays for a load.
#include <pthread.h>

#include <atomic>

namespace sidestep::engine {

class Wakeable;

/// The program has cancelled a thread at some time.
extern std::atomic<bool> threads_are_cancelled;

/// From enter() to the end of its life the calling thread is not cancelled. Nests.
class NotCancelled {
 public:
  NotCancelled() noexcept = default;
  /// `outermost`: there can be no other, but those that were left by longjmp().
  void enter(bool outermost) noexcept {
    // relaxed: a thread that is cancelled at this moment may as well have been before or after.
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

/// The calling thread is asked to end, and would: the call has to go back.
bool cancellation_is_due() noexcept;

/// Around the last look at cancellation_is_due() and the sleep after it, which ends when the thread
/// is asked to end: one with a `sleeper` because that is woken, another, in ppoll(2) or
/// epoll_pwait(2), with EINTR.
class CancellableSleep {
 public:
  explicit CancellableSleep(Wakeable* sleeper = nullptr) noexcept;
  ~CancellableSleep();
  CancellableSleep(const CancellableSleep&) = delete;
};

/// After pthread_cancel(): ends the sleep of `thread`, if it is in one, and waits until that is
/// done where it must be a signal that does it.
void end_sleep_of_cancelled(pthread_t thread) noexcept;
/// Before libc is asked, outside of every NotCancelled, whether the calling thread is cancelled:
/// what end_sleep_of_cancelled() has asked for is being done, unless the program has disabled it.
void answer_cancellation() noexcept;
/// In the child: the threads of the parent are not there.
void forget_cancellations_after_fork() noexcept;

}  // namespace sidestep::engine

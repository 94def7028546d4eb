#pragma once
/// How one thread, or a set, sleeps until something happens to a stream, and is woken.
///
/// A thread that waits for the engine only sleeps on a word of its own (futex(2)), which takes no
/// descriptor. One that waits for descriptors as well sleeps in ppoll(2), beside an alarm
/// (alarm.hpp). Sets have an eventfd of their own in the kernel's set.
///
/// The word is that of a Wakeable (base/wakeable.hpp).
///
/// A handler that runs between that look and a sleep on the word stores 1 (handler_ran()), and so
/// does who cancels the thread: the kernel compares the word as it puts the thread to sleep. So
/// this sleep needs no signals blocked; the one in ppoll(2) does.
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/lock.hpp"
#include "engine/base/nap.hpp"
#include "engine/base/wakeable.hpp"
#include "engine/progress/alarm.hpp"
#include "engine/stream/watch.hpp"

struct pollfd;

namespace sidestep::engine {

/// A thread.
class Sleeper final : public Wakeable {
 public:
  /// The calling thread's; it returns to the pool when the thread ends.
  static Sleeper& mine() noexcept;
  /// In the child: those of the parent are left alone, but for the calling thread's.
  static void forget_after_fork() noexcept;
  /// A handler of a signal runs on the calling thread. Async-signal-safe.
  static void handler_ran() noexcept {
    // relaxed: the same thread's. Not in another sleep: who wakes that one has to find 0.
    if (of_thread_ != nullptr && of_thread_->way_.load(std::memory_order_relaxed) == Way::word)
      of_thread_->word_.store(kAwake, std::memory_order_relaxed);
  }

  enum class Way : uint8_t {
    word,  ///< sleep(), both kinds of it
    poll,  ///< poll()
    lead,  ///< poll(), and the doorbells are among the descriptors
  };
  /// The owner, before it looks at what it waits for, and sleeps so. Before each sleep.
  void prepare(Way way) noexcept;
  /// Until it is woken: 1; 0: the time is up; else -EINTR. It may be 1 for no reason: see
  /// stay_awake(). `timeout`: null is for ever.
  int sleep(const timespec* timeout) noexcept;
  static constexpr size_t kMostNaps = 32;
  /// The same, and until a peer has changed one of these words and woken those who sleep on it. Not
  /// more than kMostNaps, and only where there is can_nap().
  int nap(std::span<const Nap> naps, const timespec* timeout) noexcept;
  /// Now and then, one thread at a time: wakes those that have been left to their peers for 20 ms,
  /// and sleep still. How many.
  static size_t wake_left(uint64_t now) noexcept;
  /// Whether this kernel lets a thread sleep on two words (Linux 5.16), and no filter of system
  /// calls (seccomp) might forbid it.
  static bool can_nap() noexcept;
  /// The same in ppoll(2) with `fds`, of which fds[alarm] is for the library's own; above 0 also
  /// where none is ready.
  int poll(std::span<pollfd> fds, size_t alarm, const timespec* timeout,
           const sigset_t* mask) noexcept;
  /// The owner, after the last sleep.
  void finish() noexcept;

 private:
  Sleeper() noexcept = default;
  static Sleeper& take() noexcept;
  static void give_back() noexcept;
  void enlist_locked() noexcept;
  void wake_now() noexcept override;

  static constinit thread_local Sleeper* of_thread_ __attribute__((tls_model("initial-exec")));
  std::atomic<Way> way_{Way::word};  // written by the owner before it stores 0 in the word
  AlarmPlace place_;
  int alarm_fd_ = -1;
  Sleeper* next_free_ = nullptr;
  Sleeper* next_ = nullptr;  ///< of all that there are
};

/// Whatever waits with an eventfd of its own: an epoll set.
class EventSleeper final : public Wakeable {
 public:
  static EventSleeper& take() noexcept;
  /// Closes the eventfd.
  static void give_back(EventSleeper& sleeper) noexcept;
  static void forget_after_fork() noexcept;
  /// One from the pool for as long as the object lives.
  class Owned;

  /// The eventfd; negative when the kernel gives none.
  int fd() const noexcept { return fd_; }
  void prepare() noexcept { word_.store(kAsleep, std::memory_order_seq_cst); }
  /// The owner, after the sleep: empties the eventfd.
  void finish() noexcept;

 private:
  EventSleeper() noexcept = default;
  void wake_now() noexcept override;

  Mutex lock_;  // a wake-up that comes late must not find another's descriptor
  int fd_ = -1;
  unsigned epoch_ = 0;  // private_fd_epoch() of fd_
  EventSleeper* next_free_ = nullptr;
};

class EventSleeper::Owned {
 public:
  Owned() noexcept = default;
  ~Owned() { give_back(sleeper_); }
  Owned(const Owned&) = delete;
  EventSleeper& operator*() const noexcept { return sleeper_; }
  EventSleeper* operator->() const noexcept { return &sleeper_; }

 private:
  EventSleeper& sleeper_ = take();
};

/// A watch on one stream that wakes the one who has it. Who naps is woken by the peer, and so need
/// not be by a thread beside it that finds what has come: that is a system call more, and wakes it
/// on another processor than that of the peer, which is about to leave its own.
class Waiter final : public Watch {
 public:
  explicit Waiter(Wakeable& sleeper) noexcept : sleeper_(sleeper) {}
  void on_event(Stream& stream, uint32_t events) noexcept override;

  /// The owner, before it looks at what it waits for: it sleeps on this, or on no peer's word.
  void nap(const Nap& nap) noexcept {
    value_.store(nap.value, std::memory_order_relaxed);
    // seq_cst pairs with on_event(): it finds this nap, or the owner what is told of.
    naps_.store(nap.word != nullptr, std::memory_order_seq_cst);
  }

 private:
  Wakeable& sleeper_;
  std::atomic<uint32_t> value_{0};
  std::atomic<bool> naps_{false};
};

}  // namespace sidestep::engine

#pragma once
/// How a thread, or an epoll set, sleeps until something happens to a stream, and is woken.
///
/// A thread that waits only for the engine sleeps on a word of its own (futex(2)), which takes no
/// descriptor. A thread that waits for descriptors as well sleeps in ppoll(2), beside an alarm
/// (alarm.hpp). Each epoll set has an eventfd of its own in the kernel's set.
///
/// The word is that of a Wakeable (base/wakeable.hpp).
///
/// A signal handler that runs between the owner's last look and its sleep on the word stores 1
/// (handler_ran()), and so does a thread that cancels the owner: the kernel compares the word as it
/// puts the owner to sleep. So signals need not be blocked for this sleep; for the one in ppoll(2)
/// they must be.
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
  /// The calling thread's sleeper; it returns to the pool when the thread ends. Null if there is no
  /// memory for one.
  static Sleeper* mine() noexcept;
  /// Called in the child of fork(): leaves the parent's sleepers alone, except the calling
  /// thread's.
  static void forget_after_fork() noexcept;
  /// Called when a signal handler runs on the calling thread. Async-signal-safe.
  static void handler_ran() noexcept {
    // relaxed: the word is the same thread's. It stays 0 in another kind of sleep, because whoever
    // wakes a thread from that has to find 0.
    if (of_thread_ != nullptr && of_thread_->way_.load(std::memory_order_relaxed) == Way::word)
      of_thread_->word_.store(kAwake, std::memory_order_relaxed);
  }

  enum class Way : uint8_t {
    word,       ///< sleep(), both kinds of it
    poll,       ///< poll()
    doorbells,  ///< poll(), and the doorbells are among the descriptors
  };
  /// Called by the owner before each sleep, before it looks at what it waits for. `way`: how it
  /// will sleep.
  void prepare(Way way) noexcept;
  /// Sleeps until the owner is woken (returns 1), the time is up (0), or a signal comes (-EINTR).
  /// May return 1 for no reason: see stay_awake(). A null `timeout` means forever.
  int sleep(const timespec* timeout) noexcept;
  static constexpr size_t kMostNaps = 32;
  /// Like sleep(), but also returns when a peer has changed one of these words and woken the
  /// threads that sleep on it. Takes no more than kMostNaps, and may be called only if can_nap().
  int nap(std::span<const Nap> naps, const timespec* timeout) noexcept;
  /// Called now and then, by one thread at a time: wakes sleepers that have been left to their
  /// peers for 20 ms and still sleep. Returns how many.
  static size_t wake_left(uint64_t now) noexcept;
  /// True if this kernel lets a thread sleep on two words (Linux 5.16) and no system call filter
  /// (seccomp) might forbid it.
  static bool can_nap() noexcept;
  /// Like sleep(), but in ppoll(2) with `fds`, of which fds[alarm] is for the library's own
  /// descriptor. May return more than 0 even if none is ready.
  int poll(std::span<pollfd> fds, size_t alarm, const timespec* timeout,
           const sigset_t* mask) noexcept;
  /// Called by the owner after the last sleep.
  void finish() noexcept;

 private:
  Sleeper() noexcept = default;
  static Sleeper* take() noexcept;
  static void give_back() noexcept;
  void enlist_locked() noexcept;
  void wake_now() noexcept override;

  static constinit thread_local Sleeper* of_thread_ __attribute__((tls_model("initial-exec")));
  std::atomic<Way> way_{Way::word};  // written by the owner before it stores 0 in the word
  AlarmPlace place_;
  int alarm_fd_ = -1;
  Sleeper* next_free_ = nullptr;
  Sleeper* next_ = nullptr;  ///< in the list of all sleepers
};

/// A waiter with an eventfd of its own: an epoll set.
class EventSleeper final : public Wakeable {
 public:
  /// Throws std::bad_alloc if there is no memory.
  static EventSleeper& take();
  /// Closes the eventfd.
  static void give_back(EventSleeper& sleeper) noexcept;
  static void forget_after_fork() noexcept;
  /// Owns one from the pool for as long as the object lives.
  class Owned;

  /// The eventfd; negative if the kernel gave none.
  int fd() const noexcept { return fd_; }
  void prepare() noexcept { word_.store(kAsleep, std::memory_order_seq_cst); }
  /// Called by the owner after the sleep: empties the eventfd.
  void finish() noexcept;

 private:
  EventSleeper() noexcept = default;
  void wake_now() noexcept override;

  Mutex lock_;  // a late wake-up must not find somebody else's descriptor
  int fd_ = -1;
  unsigned epoch_ = 0;  // private_fd_epoch() of fd_
  EventSleeper* next_free_ = nullptr;
};

class EventSleeper::Owned {
 public:
  Owned() = default;
  ~Owned() { give_back(sleeper_); }
  Owned(const Owned&) = delete;
  EventSleeper& operator*() const noexcept { return sleeper_; }
  EventSleeper* operator->() const noexcept { return &sleeper_; }

 private:
  EventSleeper& sleeper_ = take();
};

/// A watch on one stream that wakes its owner. The peer wakes an owner that naps, so a thread
/// beside the owner that finds what has come need not do so. That would be one more system call,
/// and would wake the owner on another processor than the peer's, which the peer is about to leave.
class Waiter final : public Watch {
 public:
  explicit Waiter(Wakeable& sleeper) noexcept : sleeper_(sleeper) {}
  void on_event(Stream& stream, uint32_t events) noexcept override;

  /// Called by the owner before it looks at what it waits for: it will sleep on this nap's word, or
  /// on no peer's word.
  void nap(const Nap& nap) noexcept {
    value_.store(nap.value, std::memory_order_relaxed);
    // seq_cst pairs with on_event(): that finds this nap, or the owner finds what is reported.
    naps_.store(nap.word != nullptr, std::memory_order_seq_cst);
  }

 private:
  Wakeable& sleeper_;
  std::atomic<uint32_t> value_{0};
  std::atomic<bool> naps_{false};
};

}  // namespace sidestep::engine

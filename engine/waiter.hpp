#pragma once
/// How one thread, or a set, sleeps until something happens to a stream, and is woken.
///
/// A thread that waits for the engine only sleeps on a word of its own (futex(2)), which takes no
/// descriptor. One that waits for descriptors as well sleeps in ppoll(2), beside an alarm
/// (alarm.hpp). Sets have an eventfd of their own in the kernel's set.
///
/// The word is 0 while its owner sleeps or is about to, else 1. Who takes it from 0 to 1 wakes the
/// owner: once for each sleep. The owner stores 0, makes itself known to those who wake, passes a
/// full barrier and looks at what it waits for; only then it sleeps.
///
/// A handler that runs between that look and a sleep on the word stores 1 (handler_ran()), and so
/// does who cancels the thread: the kernel compares the word as it puts the thread to sleep. So
/// this sleep needs no signals blocked; the one in ppoll(2) does.
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/alarm.hpp"
#include "engine/held_locks.hpp"
#include "engine/lock.hpp"
#include "engine/nap.hpp"
#include "engine/watch.hpp"

struct pollfd;

namespace sidestep::engine {

/// What can be woken. Those that there are come from pools and are never freed, so that a wake-up
/// that comes late is at worst a spurious one.
class Wakeable {
 public:
  Wakeable(const Wakeable&) = delete;
  /// Any thread. A system call only for the first wake-up of a sleep; inside a WakeBatch it is made
  /// when the batch ends.
  void wake() noexcept;
  /// Any thread: a peer is about to wake it. If that is stopped before, Sleeper::wake_left() helps.
  void leave_to_peer() noexcept;
  /// The owner: what it dispatches itself need not wake it. True: it was woken before.
  bool stay_awake() noexcept { return word_.exchange(kAwake, std::memory_order_seq_cst) == kAwake; }

 protected:
  static constexpr uint32_t kAsleep = 0;
  static constexpr uint32_t kAwake = 1;

  Wakeable() noexcept = default;
  ~Wakeable() = default;
  std::atomic<uint32_t> word_{kAwake};
  enum class Left : uint8_t { no, yes, for_long };
  std::atomic<Left> left_{Left::no};  ///< in this sleep. Relaxed: it is told again, or looked at.

 private:
  friend class WakeBatch;
  virtual void wake_now() noexcept = 0;
};

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

/// A thread that wakes another may lose its processor to it at once. While it holds a lock that the
/// whole process needs, that would stop everybody: wake-ups inside the life of a batch are made at
/// its end, and the batch outlives the lock. So handlers wait for the end of the batch.
class WakeBatch {
 public:
  // Inline: each poll has one, and most find nothing.
  WakeBatch() noexcept : outer_(current_) { current_ = this; }
  ~WakeBatch() {
    current_ = outer_;
    if (count_ != 0) [[unlikely]]
      wake_all();
  }
  WakeBatch(const WakeBatch&) = delete;

 private:
  friend class Wakeable;
  static constexpr size_t kRoom = 64;
  static constinit thread_local WakeBatch* current_ __attribute__((tls_model("initial-exec")));
  void wake_all() noexcept;

  const HandlersWait first_;
  WakeBatch* const outer_;
  size_t count_ = 0;
  Wakeable* sleepers_[kRoom];
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

#pragma once
/// How one thread sleeps until something happens to a stream: an eventfd of its own, so that the
/// sleep can be joined with any other descriptors in one ppoll(2), and ends with EINTR as the
/// program expects.
#include <atomic>
#include <cstddef>

#include "engine/held_locks.hpp"
#include "engine/watch.hpp"

namespace sidestep::engine {

/// Something that can be woken: a thread, or an event set. Sleepers come from a pool that is never
/// given back, so that a late wake_now() is at worst a spurious one.
class Sleeper {
 public:
  /// The calling thread's; it returns to the pool when the thread ends.
  static Sleeper& mine() noexcept;
  static Sleeper& take() noexcept;
  static void give_back(Sleeper& sleeper) noexcept;
  /// In the child: those of the parent are left alone, but for the calling thread's.
  static void forget_after_fork() noexcept;
  /// One from the pool for as long as the object lives.
  class Owned;

  /// The eventfd; negative when the kernel gives none.
  int fd() const noexcept { return fd_; }
  /// Any thread. A system call only for the first wake-up of a sleep; inside a WakeBatch it is made
  /// when the batch ends.
  void wake() noexcept;
  /// The owner, before it makes itself known to those who wake.
  void prepare() noexcept { woken_.store(false, std::memory_order_seq_cst); }
  /// The owner, awake: what it dispatches itself need not wake it. prepare() before the next sleep.
  void stay_awake() noexcept { woken_.store(true, std::memory_order_seq_cst); }
  /// The owner, after the sleep: empties the eventfd.
  void finish() noexcept;

 private:
  friend class WakeBatch;
  Sleeper() noexcept = default;  // without an eventfd, which take() gives it
  void wake_now() noexcept;
  /// Sees to it that there is an eventfd, and that it is this process's.
  void open() noexcept;

  std::atomic<bool> woken_{true};
  int fd_ = -1;
  unsigned epoch_ = 0;  // private_fd_epoch() of fd_
  Sleeper* next_free_ = nullptr;
};

class Sleeper::Owned {
 public:
  Owned() noexcept = default;
  ~Owned() { give_back(sleeper_); }
  Owned(const Owned&) = delete;
  Sleeper& operator*() const noexcept { return sleeper_; }
  Sleeper* operator->() const noexcept { return &sleeper_; }

 private:
  Sleeper& sleeper_ = take();
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
  friend class Sleeper;
  static constexpr size_t kRoom = 64;
  static constinit thread_local WakeBatch* current_ __attribute__((tls_model("initial-exec")));
  void wake_all() noexcept;

  const HandlersWait first_;
  WakeBatch* const outer_;
  size_t count_ = 0;
  Sleeper* sleepers_[kRoom];
};

/// The calling thread's watch on one stream.
class Waiter final : public Watch {
 public:
  explicit Waiter(Sleeper& sleeper) noexcept : sleeper_(sleeper) {}
  void on_event(Stream&, uint32_t) noexcept override { sleeper_.wake(); }

 private:
  Sleeper& sleeper_;
};

}  // namespace sidestep::engine

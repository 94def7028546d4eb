#pragma once
/// Who sleeps, and is woken by any thread at most once for each sleep.
///
/// The word is 0 while its owner sleeps or is about to, else 1. Who takes it from 0 to 1 wakes the
/// owner: once for each sleep. The owner stores 0, makes itself known to those who wake, passes a
/// full barrier and looks at what it waits for; only then it sleeps.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/base/held_locks.hpp"

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
  static std::atomic<bool> some_left;  ///< anybody, since it was last looked for
  std::atomic<Left> left_{Left::no};   ///< in this sleep. Relaxed: it is told again, or looked at.

 private:
  friend class WakeBatch;
  virtual void wake_now() noexcept = 0;
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

}  // namespace sidestep::engine

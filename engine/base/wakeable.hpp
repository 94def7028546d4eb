#pragma once
/// Sleepers that any thread may wake, at most once for each sleep.
///
/// The word is 0 while its owner sleeps or is about to, else 1. Whoever takes it from 0 to 1 wakes
/// the owner, so that there is one wake-up for each sleep. The owner stores 0, makes itself known
/// to those who wake, passes a full barrier and looks at what it waits for; only then does it
/// sleep.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/base/held_locks.hpp"

namespace sidestep::engine {

/// Something that can be woken. All objects come from pools and are never freed, so that a late
/// wake-up is at worst a spurious one.
class Wakeable {
 public:
  Wakeable(const Wakeable&) = delete;
  /// Wakes the owner. Any thread. Makes a system call only for the first wake-up of a sleep; inside
  /// a WakeBatch, when the batch ends.
  void wake() noexcept;
  /// Notes that a peer is about to wake the owner. Any thread. If the peer is stopped before that,
  /// Sleeper::wake_left() helps.
  void leave_to_peer() noexcept;
  /// Called by the owner: what it dispatches itself need not wake it. True if it was woken before.
  bool stay_awake() noexcept { return word_.exchange(kAwake, std::memory_order_seq_cst) == kAwake; }

 protected:
  static constexpr uint32_t kAsleep = 0;
  static constexpr uint32_t kAwake = 1;

  Wakeable() noexcept = default;
  ~Wakeable() = default;
  std::atomic<uint32_t> word_{kAwake};
  enum class Left : uint8_t { no, yes, for_long };
  static std::atomic<bool> some_left;  ///< any sleeper was left since the last look
  /// In this sleep. Relaxed: what is missed is told again, or found by the next look.
  std::atomic<Left> left_{Left::no};

 private:
  friend class WakeBatch;
  virtual void wake_now() noexcept = 0;
};

/// A thread that wakes another may lose its processor to it at once. If it held a lock that the
/// whole process needs, that would stop everybody. So wake-ups during the life of a batch are made
/// at its end, and the batch outlives the lock. Handlers therefore wait for the end of the batch.
class WakeBatch {
 public:
  // Inline: each poll has a batch, and most find nothing.
  WakeBatch() noexcept : outer_(current_) { current_ = this; }
  [[gnu::always_inline]] ~WakeBatch() {
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

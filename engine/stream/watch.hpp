#pragma once
/// Who wants to hear of a stream: threads that sleep on it and event sets that contain it.
///
/// The pattern that loses no wake-up: the watcher adds its Watch, passes a full barrier (add() is
/// one), looks at the stream, and only then sleeps. The notifier changes the stream, passes a full
/// barrier, and calls notify(). One of the two sees the other.
#include <atomic>
#include <cstdint>
#include <mutex>

#include "engine/base/lock.hpp"

namespace sidestep::engine {

class Stream;

/// What happened. The values of EPOLLIN and EPOLLOUT, and one of our own.
inline constexpr uint32_t kReadable = 0x001;
inline constexpr uint32_t kWritable = 0x004;
/// With kReadable: the news came over the connection, and whoever posted it there wakes the thread
/// that naps (nap.hpp).
inline constexpr uint32_t kArrived = 0x20000000;
inline constexpr uint32_t kMoved = 0x10000000;  ///< the stream changed its phase: look at it again

class Watch {
 public:
  virtual void on_event(Stream& stream, uint32_t events) noexcept = 0;

 protected:
  ~Watch() = default;

 private:
  friend class WatchList;
  Watch* next_ = nullptr;
  Watch* previous_ = nullptr;
};

class WatchList {
 public:
  void add(Watch& watch) noexcept {
    const std::lock_guard guard(lock_);
    watch.previous_ = nullptr;
    watch.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &watch;
    first_ = &watch;
    count_.fetch_add(1, std::memory_order_seq_cst);
  }

  /// The watch need not be in the list: another thread may have removed it.
  void remove(Watch& watch) noexcept {
    const std::lock_guard guard(lock_);
    if (watch.previous_ != nullptr || first_ == &watch) {
      (watch.previous_ != nullptr ? watch.previous_->next_ : first_) = watch.next_;
      if (watch.next_ != nullptr) watch.next_->previous_ = watch.previous_;
      watch.next_ = watch.previous_ = nullptr;
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  /// The caller has passed a full barrier since the change that it reports. Callbacks run under the
  /// list's lock and must not call back into the list.
  void notify(Stream& stream, uint32_t events) noexcept {
    if (empty()) return;
    const std::lock_guard guard(lock_);
    for (Watch* watch = first_; watch != nullptr; watch = watch->next_)
      watch->on_event(stream, events);
  }

  bool empty() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }
  void reset_after_fork() noexcept { lock_.reset_after_fork(); }

 private:
  Mutex lock_;
  std::atomic<uint32_t> count_{0};
  Watch* first_ = nullptr;
};

}  // namespace sidestep::engine

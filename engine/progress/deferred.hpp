#pragma once
/// The streams for which something could not be done at once: a fragment found no room, a lock was
/// taken, or a closed stream waits for its peer. Whoever polls next tries again.
///
/// A stream that is closed or lost needs the receive lock. A thread that holds the lock of one lane
/// sets such a stream aside for a thread that holds the locks of all.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <vector>

#include "engine/base/lock.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class StreamUpkeep;

class Deferred {
 public:
  explicit Deferred(StreamUpkeep& upkeep) noexcept : upkeep_(upkeep) {}
  Deferred(const Deferred&) = delete;

  /// Makes room for so many streams, so that add() needs no memory. Throws std::bad_alloc.
  void reserve(size_t streams);
  /// The stream is asked again at the next poll. Any thread, with any locks of streams.
  void add(Stream& stream) noexcept;
  /// Called before the stream is freed, under the receive lock.
  void forget(Stream& stream) noexcept;
  /// Hints: work that is added while the caller looks is seen by the next poll.
  bool has_any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  bool has_set_aside() const noexcept {
    return set_aside_count_.load(std::memory_order_relaxed) != 0;
  }
  /// True if something is deferred for a stream whose connection is not excused. The caller holds
  /// the receive lock, which keeps connections alive.
  template <typename Excused>
  bool has_any_but(Excused is_excused) noexcept {
    const std::lock_guard guard(lock_);
    return std::any_of(streams_.begin(), streams_.end(), [&](const Stream* stream) {
      Connection* const connection = stream->connection();
      return connection == nullptr || !is_excused(*connection);
    });
  }
  /// Asks all of them. `has_all`: the caller holds the receive lock, or that is the lock of the
  /// only lane; else it holds one lane's lock.
  void run_locked(bool has_all) noexcept;

 private:
  void set_aside(Stream& stream) noexcept;

  StreamUpkeep& upkeep_;
  alignas(64) Mutex lock_;
  std::atomic<size_t> count_{0};
  std::vector<Stream*> streams_;
  std::vector<Stream*> set_aside_;  // listed streams whose work needs the receive lock
  std::atomic<size_t> set_aside_count_{0};
  Mutex running_lock_;            // only tried, after a lane's lock
  std::vector<Stream*> running_;  // the streams being looked at now
};

}  // namespace sidestep::engine

#include "engine/progress/deferred.hpp"

#include <mutex>
#include <utility>

#include "engine/progress/stream_upkeep.hpp"
#include "engine/stream/deferred_stream.hpp"

namespace sidestep::engine {

void Deferred::reserve(size_t streams) {
  const std::lock_guard guard(lock_);
  for (auto* list : {&streams_, &running_, &set_aside_}) list->reserve(streams);
}

void Deferred::add(Stream& stream) noexcept {
  const std::lock_guard guard(lock_);
  if (!std::exchange(DeferredStream(stream).is_listed(), true)) {
    streams_.push_back(&stream);
    count_.store(streams_.size(), std::memory_order_relaxed);
  }
}

void Deferred::set_aside(Stream& stream) noexcept {
  const std::lock_guard guard(lock_);
  if (!std::exchange(DeferredStream(stream).is_listed(), true)) {
    set_aside_.push_back(&stream);
    set_aside_count_.store(set_aside_.size(), std::memory_order_relaxed);
  }
}

void Deferred::forget(Stream& stream) noexcept {
  const std::lock_guard guard(lock_);
  if (DeferredStream(stream).is_listed()) {
    std::erase(streams_, &stream);
    std::erase(set_aside_, &stream);
    count_.store(streams_.size(), std::memory_order_relaxed);
    set_aside_count_.store(set_aside_.size(), std::memory_order_relaxed);
  }
}

void Deferred::run_locked(bool has_all) noexcept {
  // If this fails, a thread with another lane does it.
  const std::unique_lock running(running_lock_, std::try_to_lock);
  if (!running) return;
  {
    const std::lock_guard guard(lock_);
    running_.swap(streams_);
    count_.store(0, std::memory_order_relaxed);
    if (has_all) {
      running_.insert(running_.end(), set_aside_.begin(), set_aside_.end());
      set_aside_.clear();
      set_aside_count_.store(0, std::memory_order_relaxed);
    }
    for (Stream* stream : running_) DeferredStream(*stream).is_listed() = false;
  }
  for (Stream* stream : running_) {
    DeferredStream work(*stream);
    const bool settled = work.run();
    const bool is_lost = work.is_lost();
    if (!has_all && (is_lost || stream->is_closed())) {
      set_aside(*stream);
      continue;
    }
    if (is_lost) work.end_as_lost();
    if (stream->is_closed()) {
      upkeep_.see_to_closed_locked(*stream, settled);
    } else if (!settled) {
      add(*stream);
    }
  }
  running_.clear();
}

}  // namespace sidestep::engine

#pragma once
/// What the list of deferred work knows of a stream (progress/deferred.hpp). Under the lock of the
/// stream's lane.
#include <cerrno>

#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class DeferredStream {
 public:
  explicit DeferredStream(Stream& stream) noexcept : stream_(stream) {}

  /// Tries to do what is deferred. False if something is left.
  bool run() noexcept { return stream_.run_deferred(); }
  /// True if the stream is lost, which the peer has been told. It is to be ended under the receive
  /// lock.
  bool is_lost() const noexcept { return stream_.sender_.is_lost_.load(std::memory_order_relaxed); }
  void end_as_lost() noexcept { stream_.abort(ECONNRESET); }
  /// Whether it is in a list. Under the lock of the list.
  bool& is_listed() noexcept { return stream_.retry_listed_; }

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

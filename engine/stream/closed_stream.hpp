#pragma once
/// A stream whose descriptor is gone, until both ends have said their last over the engine. Under
/// the node's receive lock.
#include <cstdint>

#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class ClosedStream {
 public:
  explicit ClosedStream(Stream& stream) noexcept : stream_(stream) {}

  /// The descriptor is gone. `spare_anchor`: a duplicate of the anchor, which is closed when the
  /// end mark is out; -1 if it is out. False if nothing has to be waited for.
  bool begin(int spare_anchor) noexcept;
  enum class State : uint8_t {
    in_hand,  ///< a thread still has it in hand for a moment
    waits,    ///< this end or the peer has not said its last
    ended,    ///< nothing that concerns the stream can come any more; the anchor is closed
  };
  State look() noexcept;

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

#pragma once
/// The anchor of a stream that the engine carries: what its news mean, and what is done about an
/// anchor that ends without the engine's end mark. All of it is called under the node's receive
/// lock.
///
/// A peer sends its end mark before it ends the anchor, but the kernel may be faster, and the peer
/// may be slow to post: time says nothing. So the peer is asked over the engine. Its answer comes
/// after the mark, if there is one. A peer that is gone is the connection's business.
#include <cstdint>

#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class AnchorWatch {
 public:
  explicit AnchorWatch(Stream& stream) noexcept : stream_(stream) {}

  /// Takes the news of the anchor, as epoll_wait(2) reports them, and tells the watchers.
  void take(uint32_t events) noexcept;
  /// Begins to suspect that the anchor has ended without a mark. False if it is suspected already.
  bool suspect() noexcept;
  void forget() noexcept { stream_.suspect_ = false; }
  /// Called when a reader has found the end and Stream::doubts_end() was true. False if it is no
  /// longer true; else nothing more comes from the anchor until more is known.
  bool question_end() noexcept;
  /// Looks after a suspect: asks the peer, ends the stream, or believes the end. True if nothing is
  /// left to be done.
  bool is_settled(uint64_t now) noexcept;

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

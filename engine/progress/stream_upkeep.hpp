#pragma once
/// What the progress code asks to be done for the streams of the node, beyond moving their bytes.
/// Implemented by NodeStreams.
#include <cstdint>

namespace sidestep::engine {

class Stream;

class StreamUpkeep {
 public:
  /// Called for a closed stream of which something is deferred, or whose peer has sent its last:
  /// frees it once both ends have ended, or has it asked again. `settled`: nothing is deferred any
  /// more. Under the receive lock.
  virtual void see_to_closed_locked(Stream& stream, bool settled) noexcept = 0;

  // --- called by the progress thread, without a lock ---

  /// The anchor of this stream has news, as epoll_wait(2) reports them.
  virtual void anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept = 0;
  /// True if there are streams whose anchor has ended without the engine's end mark.
  virtual bool has_suspects() const noexcept = 0;
  virtual void check_suspects(uint64_t now) noexcept = 0;
  /// Looks after the streams that may come back.
  virtual void bring_back(uint64_t now) noexcept = 0;
  /// Looks after the anchors of streams that the engine carries.
  virtual void keep_anchors_alive(uint64_t now) noexcept = 0;

 protected:
  ~StreamUpkeep() = default;
};

}  // namespace sidestep::engine

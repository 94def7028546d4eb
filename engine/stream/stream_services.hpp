#pragma once
/// What a stream asks of the node that it belongs to. Implemented by NodeStreams.
///
/// Whichever thread is in the stream calls these functions, with the locks of that step held. None
/// of them waits, and none calls the stream back.
#include <cstdint>

#include "engine/base/counters.hpp"

namespace sidestep::engine {

class Stream;

class StreamServices {
 public:
  /// The counters that the stream adds to.
  virtual NodeCounters& counters() noexcept = 0;
  virtual uint16_t nid() const noexcept = 0;

  // --- of the progress code ---

  /// A fragment could not be sent, for want of room or of a lock. The node asks the stream again.
  virtual void retry_later(Stream& stream) noexcept = 0;
  /// The peer may move something at any moment.
  virtual void expect_moves() noexcept = 0;
  /// The node watches the stream's anchor from now on.
  virtual void watch_anchor(Stream& stream) noexcept = 0;
  /// The peer has sent its last fragment of the stream: the end, or a reset.
  virtual void stream_ended(Stream& stream) noexcept = 0;
  virtual void count_switch_up(Stream& stream) noexcept = 0;
  virtual void count_switch_down(Stream& stream) noexcept = 0;

  // --- under the node's receive lock ---

  /// The stream has failed over to its anchor because its connection is gone, and may come back
  /// some time.
  virtual void expect_reopening_locked(Stream& stream) noexcept = 0;
  /// The node no longer asks about the stream's end.
  virtual void forget_suspect_locked(Stream& stream) noexcept = 0;

  // --- of the manager; any thread ---

  /// The stream has just been decided to stay on the kernel for good: tells the other end.
  virtual void keep_on_kernel(Stream& stream) noexcept = 0;
  /// The stream has been entered in the directory: tells the node that looks for it.
  virtual void tell_of_entry(Stream& stream) noexcept = 0;
  virtual void note_full_directory(Stream& stream) noexcept = 0;
  /// The stream is in use now; its program may wait for it in a way that the shim does not see.
  virtual void look_for_waiters(Stream& stream) noexcept = 0;

 protected:
  ~StreamServices() = default;
};

}  // namespace sidestep::engine

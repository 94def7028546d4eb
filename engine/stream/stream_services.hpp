#pragma once
/// What a stream asks of the node that it belongs to. Implemented by Node.
///
/// Called by whichever thread is in the stream, with the locks of that step held; none of it waits,
/// and none calls the stream back.
#include <cstdint>

#include "engine/base/counters.hpp"

namespace sidestep::engine {

class Stream;

class StreamServices {
 public:
  /// To be added to.
  virtual NodeCounters& counters() noexcept = 0;
  virtual uint16_t nid() const noexcept = 0;

  // --- of the progress code ---

  /// A fragment could not be sent: for want of room, or of a lock. The stream is asked again.
  virtual void retry_later(Stream& stream) noexcept = 0;
  /// The peer may move something at any moment.
  virtual void expect_moves() noexcept = 0;
  /// Its anchor is to be looked at from now on.
  virtual void watch_anchor(Stream& stream) noexcept = 0;
  /// It has said its last over the engine, and heard the peer's.
  virtual void stream_ended(Stream& stream) noexcept = 0;
  virtual void count_switch_up(Stream& stream) noexcept = 0;
  virtual void count_switch_down(Stream& stream) noexcept = 0;

  // --- under the node's receive lock ---

  /// It has landed on its anchor because its connection is gone, and may come back some time.
  virtual void expect_return_locked(Stream& stream) noexcept = 0;
  /// Nothing is asked about its end any more.
  virtual void forget_suspect_locked(Stream& stream) noexcept = 0;

  // --- of the manager; any thread ---

  /// It has just been decided to stay on the kernel, for good: the other end is told.
  virtual void keep_on_kernel(Stream& stream) noexcept = 0;
  /// It is entered in the directory: the node that looks for it is told.
  virtual void tell_of_entry(Stream& stream) noexcept = 0;
  virtual void note_full_directory(Stream& stream) noexcept = 0;
  /// The stream is in use now. Its program may wait for it in a way that the shim does not see.
  virtual void look_for_waiters(Stream& stream) noexcept = 0;

 protected:
  ~StreamServices() = default;
};

}  // namespace sidestep::engine

#pragma once
/// Whether and when a stream that has lost its connection tries to leave the kernel again
/// (reopening.cpp). Under the node's receive lock.
#include <cstdint>

#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class StreamReopening {
 public:
  explicit StreamReopening(Stream& stream) noexcept : stream_(stream) {}

  bool is_expected() const noexcept { return back().expected; }
  /// When the stream was bound last, in nanoseconds of now_ns(); 0: never.
  uint64_t bound_at() const noexcept { return back().bound_at; }
  /// Expects the stream back, later each time. False if it was expected already.
  bool expect(uint64_t now) noexcept;
  /// Called when the stream was refused. `begin`: even if it was not expected. False if it is not
  /// to try again.
  bool may_try_again(bool begin) noexcept;
  enum class Step : uint8_t {
    none,        ///< it waits
    over,        ///< it is back, or will never be
    left,        ///< it has left its connection, and is undecided again
    left_alone,  ///< it has left its connection, and is the kernel's for good
    asks,        ///< its other end is to be asked for
  };
  Step look(uint64_t now) noexcept;

 private:
  Stream::Reopening& back() const noexcept { return stream_.reopening_; }

  Stream& stream_;
};

}  // namespace sidestep::engine

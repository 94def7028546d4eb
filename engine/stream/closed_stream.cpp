#include "engine/stream/closed_stream.hpp"

#include <mutex>

#include "engine/base/private_fd.hpp"

namespace sidestep::engine {

bool ClosedStream::begin(int spare_anchor) noexcept {
  stream_.unlist();
  stream_.set_anchor(spare_anchor);
  stream_.closed_ = true;
  if (stream_.connection() == nullptr) return false;
  stream_.receiver_.queue_.clear();
  stream_.receiver_.answer_hold();
  stream_.sender_.defer(Sender::kClose);
  return true;
}

ClosedStream::State ClosedStream::look() noexcept {
  {
    // Nobody reads the stream any more, except a thread that still has it in hand for a moment.
    const std::unique_lock lock(stream_.receiver_.mutex(), std::try_to_lock);
    if (!lock) return State::in_hand;
    stream_.receiver_.queue_.clear();
  }
  if (stream_.sender_.has_told_end() && stream_.anchor() >= 0) {
    private_fd_close(stream_.anchor());
    stream_.set_anchor(-1);
  }
  // A stream that goes on alone hears nothing any more, and a peer that was told of a reset or of a
  // close on the kernel owes nothing.
  const bool ended =
      stream_.sender_.has_told_end() &&  // its acquire: the last two were set before
      (stream_.receiver_.peer_fin_ || stream_.failed_over_ || stream_.sender_.lets_go_ ||
       stream_.sender_.reset_sent_.load(std::memory_order_relaxed));
  if (!ended && !stream_.is_aborted()) return State::waits;
  if (stream_.anchor() >= 0) private_fd_close(stream_.anchor());
  return State::ended;
}

}  // namespace sidestep::engine

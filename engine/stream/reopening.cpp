// Streams that have lost their connection and have failed over to their anchors (recovery.hpp).
// Either the connection made way for another one (SIDESTEP_CONNECTIONS), or, between hosts, it
// failed, usually because a link was down for a while. These streams may come back: each end makes
// its stream undecided again, and the accepting end asks anew when there is traffic, after a longer
// wait each time.
//
// A connection may go when none of its streams refers to it. So a stream starts over under the
// node's receive lock and both of its own locks. Whoever uses Stream::connection() of a stream that
// may start over holds one of these.
#include <mutex>

#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

bool Sender::can_start_over_locked() const noexcept {
  return failed_over_ && !ended_ && state() == SenderState::kernel;
}

void Sender::start_over_locked() noexcept {
  failed_over_ = false;
  replay_done_ = 0;
  peer_ready_.store(false, std::memory_order_relaxed);
  deferred_.store(0, std::memory_order_relaxed);
}

bool Receiver::can_start_over_locked() noexcept {
  return !peer_fin_ && state() == ReceiverState::kernel && queue_.front() == nullptr;
}

void Receiver::start_over_locked() noexcept {
  engine_sends_ = false;
  end_questioned_.store(false, std::memory_order_relaxed);
  end_believed_.store(false, std::memory_order_relaxed);
  ended_.store(false, std::memory_order_relaxed);
  goes_.store(0, std::memory_order_relaxed);
  downs_.store(0, std::memory_order_relaxed);
  ups_ = 0;
  deferred_.store(0, std::memory_order_relaxed);
}

std::optional<bool> Stream::start_over() noexcept {
  // Only tries: the caller holds the lock that all streams need, and a thread that has one of these
  // may be waiting for a page.
  if (!sender_.lock_.try_lock()) return std::nullopt;
  if (!receiver_.lock_.try_lock()) {
    sender_.unlock();
    return std::nullopt;
  }
  // Unlike unlock() of the two, these leave to the progress code what others have deferred
  // meanwhile.
  const std::lock_guard sending(sender_.lock_, std::adopt_lock);
  const std::lock_guard receiving(receiver_.lock_, std::adopt_lock);
  const bool can = failed_over_ && !is_aborted() && !anchor_failed_ &&
                   sender_.can_start_over_locked() && receiver_.can_start_over_locked();
  if (can) {
    // The phase comes first: on the kernel and without a connection, the stream would look as if it
    // were there for good, and another thread would use the anchor past the locks and the counts.
    // release pairs with is_kernels_for_good(). seq_cst pairs with request_down(), which sets
    // for_good_ and then looks at the phase. One of the two sees the other.
    receiver_.put_low_water_locked(receiver_.low_water());
    keep_alive_.end_locked();
    phase_.store(Phase::undecided, std::memory_order_seq_cst);
    connection()->remove_stream(*this);
    connection_.store(nullptr, std::memory_order_release);
    services_->forget_suspect_locked(*this);
    failed_over_ = probe_answered_ = false;
    reopening_.traffic = sender_.kernel_bytes() + receiver_.kernel_bytes();
    claim_ = {};
    sender_.start_over_locked();
    receiver_.start_over_locked();
    stay_down_.store(false, std::memory_order_relaxed);
    if (for_good_.load(std::memory_order_seq_cst)) set_phase(Phase::kernel);
  }
  return can;
}

}  // namespace sidestep::engine

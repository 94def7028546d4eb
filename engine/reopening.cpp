// Streams that have lost their connection and have landed on their anchors (recovery.hpp): because
// it made way for another one (SIDESTEP_CONNECTIONS), or, between hosts, because it failed, of
// which a link that was down for a while is the usual reason. They may come back: each end makes
// its stream undecided again, and the accepting end asks anew when there is traffic, later and
// later after each time.
//
// A connection may go when none of its streams refers to it. So a stream that starts over does it
// under the node's receive lock and both of its own, one of which everybody holds who uses
// Stream::connection() of a stream that may start over.
#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/manager.hpp"
#include "engine/node.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLongestWait = 64 * kSecond;
constexpr unsigned kMostRefusals = 100;  // more than an hour of them; it then stays where it is

}  // namespace

void Node::expect_return_locked(Stream& stream) noexcept {
  Stream::Return& back = stream.return_;
  const uint64_t now = now_ns();
  // One that could stay for long begins anew; one that is sent away again and again waits longer.
  const bool stayed = back.bound_at != 0 && now - back.bound_at > kLongestWait;
  back.wait = back.wait == 0 || stayed ? kSecond : std::min(back.wait * 2, kLongestWait);
  back.at = now + back.wait;
  back.traffic = stream.tx_kernel() + stream.rx_kernel();
  if (back.expected) return;
  returning_.push_back(&stream);  // see make_places()
  back.expected = true;
  returning_count_.store(returning_.size(), std::memory_order_relaxed);
}

bool Node::try_again_locked(Stream& stream, bool begin) noexcept {
  Stream::Return& back = stream.return_;
  if ((!begin && !back.expected) || stream.for_good_.load(std::memory_order_relaxed) ||
      ++back.refusals > kMostRefusals)
    return false;
  expect_return_locked(stream);
  return back.expected;
}

void Node::bring_back(uint64_t now) noexcept {
  if (returning_count_.load(std::memory_order_relaxed) == 0 || !recv_lock_.try_lock()) return;
  bool left_one = false;
  bool asked = false;
  std::erase_if(returning_, [&](Stream* stream) {
    Stream::Return& back = stream->return_;
    const Phase phase = stream->phase();
    const bool over =
        stream->is_dead() || stream->closed_ || stream->for_good_.load(std::memory_order_relaxed);
    bool waits = !over;
    if (over) {
      // Nothing any more.
    } else if (phase == Phase::bound) {
      waits = stream->landed_;  // it has not settled yet; else it is back
    } else if (phase == Phase::kernel) {
      const auto begun = stream->start_over();
      left_one = begun.value_or(false) || left_one;
      waits = !begun || stream->phase() == Phase::undecided;
      if (waits && begun && directory() != nullptr) stream->list(*directory());
    } else if (stream->accepted_ && now >= back.at &&
               stream->tx_kernel() + stream->rx_kernel() != back.traffic) {
      back.at = now + kLongestWait;  // an answer that does not come is not waited for any longer
      manager_->query(stream->id(), stream->generation());
      asked = true;
    }
    if (!waits) back.expected = false;
    return !waits;
  });
  returning_count_.store(returning_.size(), std::memory_order_relaxed);
  if (left_one) connections_.sweep();
  recv_lock_.unlock();
  if (asked) attendance_.expect_moves();
}

std::optional<bool> Stream::start_over() noexcept {
  // Tries: the caller holds what all streams need, and who has one of them may be waiting for a
  // page.
  if (!send_lock_.try_lock()) return std::nullopt;
  if (!recv_lock_.try_lock()) {
    unlock_send();
    return std::nullopt;
  }
  const bool can = landed_ && tx_landed_ && is_down_locked() && !tx_fin_ && !peer_fin_ &&
                   !is_dead() && !anchor_failed_ && queue_.front() == nullptr;
  if (can) {
    // The phase first: on the kernel and without a connection it would look as if it were there for
    // good, and another thread use the anchor past the locks and the counts. release pairs with
    // is_kernels_for_good(). seq_cst: pairs with request_down(), which says for good and then looks
    // at the phase. One of the two sees the other.
    put_low_water_locked(low_water());
    end_keep_alive_locked();
    phase_.store(Phase::undecided, std::memory_order_seq_cst);
    connection()->remove_stream(*this);
    connection_.store(nullptr, std::memory_order_release);
    node_->forget_suspect_locked(*this);
    landed_ = tx_landed_ = engine_sends_ = probe_answered_ = false;
    end_questioned_.store(false, std::memory_order_relaxed);
    end_believed_.store(false, std::memory_order_relaxed);
    return_.traffic = tx_kernel() + rx_kernel();
    claim_ = {};
    replay_done_ = 0;
    rx_ended_.store(false, std::memory_order_relaxed);
    rx_goes_.store(0, std::memory_order_relaxed);
    rx_downs_.store(0, std::memory_order_relaxed);
    rx_ups_ = 0;
    go_.store(false, std::memory_order_relaxed);
    tx_acked_.store(true, std::memory_order_relaxed);
    deferred_.store(0, std::memory_order_relaxed);
    stay_down_.store(false, std::memory_order_relaxed);
    if (for_good_.load(std::memory_order_seq_cst)) set_phase(Phase::kernel);
  }
  recv_lock_.unlock();
  send_lock_.unlock();
  return can;
}

}  // namespace sidestep::engine

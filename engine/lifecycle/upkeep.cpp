// What the node does for its streams now and then, in the progress thread: it brings back those
// that have lost their connection (stream/reopening.cpp), and keeps anchors alive that carry
// nothing (stream/keepalive.cpp).
#include <algorithm>
#include <new>

#include "engine/base/clock.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLongestWait = 64 * kSecond;
constexpr unsigned kMostRefusals = 100;  // more than an hour; then the stream stays where it is

}  // namespace

void NodeStreams::expect_return_locked(Stream& stream) noexcept {
  Stream::Return& back = stream.return_;
  const uint64_t now = now_ns();
  // A stream that could stay for long begins anew; one that is sent away again and again waits
  // longer.
  const bool stayed = back.bound_at != 0 && now - back.bound_at > kLongestWait;
  back.wait = back.wait == 0 || stayed ? kSecond : std::min(back.wait * 2, kLongestWait);
  back.at = now + back.wait;
  back.traffic = stream.tx_kernel() + stream.rx_kernel();
  if (back.expected) return;
  returning_.push_back(&stream);  // see make_places()
  back.expected = true;
  returning_count_.store(returning_.size(), std::memory_order_relaxed);
}

bool NodeStreams::try_again_locked(Stream& stream, bool begin) noexcept {
  Stream::Return& back = stream.return_;
  if ((!begin && !back.expected) || stream.for_good_.load(std::memory_order_relaxed) ||
      ++back.refusals > kMostRefusals)
    return false;
  expect_return_locked(stream);
  return back.expected;
}

void NodeStreams::bring_back(uint64_t now) noexcept {
  if (returning_count_.load(std::memory_order_relaxed) == 0 || !recv_lock().try_lock()) return;
  bool left_one = false;
  bool asked = false;
  std::erase_if(returning_, [&](Stream* stream) {
    Stream::Return& back = stream->return_;
    const Phase phase = stream->phase();
    const bool over =
        stream->is_dead() || stream->closed_ || stream->for_good_.load(std::memory_order_relaxed);
    bool waits = !over;
    if (over) {
      // Nothing is left to do.
    } else if (phase == Phase::bound) {
      waits = stream->landed_;  // if so, it has not settled yet; otherwise it is back
    } else if (phase == Phase::kernel) {
      const auto begun = stream->start_over();
      left_one = begun.value_or(false) || left_one;
      waits = !begun || stream->phase() == Phase::undecided;
      if (waits && begun && directory() != nullptr) stream->list(*directory());
    } else if (stream->accepted_ && now >= back.at &&
               stream->tx_kernel() + stream->rx_kernel() != back.traffic) {
      back.at = now + kLongestWait;  // an answer is waited for no longer than that
      jobs_.query(stream->id(), stream->generation());
      asked = true;
    }
    if (!waits) back.expected = false;
    return !waits;
  });
  returning_count_.store(returning_.size(), std::memory_order_relaxed);
  if (left_one) progress_.connections().sweep();
  recv_lock().unlock();
  if (asked) progress_.attendance().expect_moves();
}

void NodeStreams::keep_anchors_alive(uint64_t now) noexcept {
  const uint64_t period = config_.keepalive * kSecond;
  if (period == 0 || now < keep_alive_at_) return;
  // Most streams are gone by that age, and cost nothing.
  const uint64_t age = std::min(period, 5 * kSecond);
  keep_alive_at_ = now + age / 2;
  if (!recv_lock().try_lock()) {
    keep_alive_at_ = now;  // at the next tick
    return;
  }
  try {
    for (Stream* const stream : open_locked()) {
      if (!stream->is_bound() || now < stream->return_.bound_at + age ||
          !stream->recv_lock_.try_lock())
        continue;
      stream->keep_alive_locked(static_cast<int>(config_.keepalive));
      stream->unlock_recv();
    }
  } catch (const std::bad_alloc&) {
    // Try another time.
  }
  recv_lock().unlock();
}

}  // namespace sidestep::engine

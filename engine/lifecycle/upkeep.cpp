// What the node does for its streams now and then, in the progress thread: it brings back those
// that have lost their connection (stream/reopening.cpp), and keeps anchors alive that carry
// nothing (stream/anchor_keep_alive.cpp).
#include <algorithm>
#include <mutex>
#include <new>

#include "engine/base/clock.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/stream_reopening.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

}  // namespace

void NodeStreams::expect_reopening_locked(Stream& stream) noexcept {
  if (!StreamReopening(stream).expect(now_ns())) return;
  returning_.push_back(&stream);  // see make_places()
  returning_count_.store(returning_.size(), std::memory_order_relaxed);
}

bool NodeStreams::try_again_locked(Stream& stream, bool begin) noexcept {
  if (!StreamReopening(stream).may_try_again(begin)) return false;
  expect_reopening_locked(stream);
  return true;
}

void NodeStreams::bring_back(uint64_t now) noexcept {
  using Step = StreamReopening::Step;
  if (returning_count_.load(std::memory_order_relaxed) == 0) return;
  bool asked = false;
  {
    const std::unique_lock lock(recv_lock(), std::try_to_lock);
    if (!lock) return;
    bool left_one = false;
    std::erase_if(returning_, [&](Stream* stream) {
      const Step step = StreamReopening(*stream).look(now);
      if (step == Step::left || step == Step::left_alone) left_one = true;
      if (step == Step::left && directory() != nullptr) UndecidedStream(*stream).list(*directory());
      if (step == Step::asks) {
        jobs_.query(stream->id(), stream->generation());
        asked = true;
      }
      return step == Step::over || step == Step::left_alone;
    });
    returning_count_.store(returning_.size(), std::memory_order_relaxed);
    if (left_one) progress_.connections().sweep();
  }
  if (asked) progress_.attendance().expect_moves();
}

void NodeStreams::keep_anchors_alive(uint64_t now) noexcept {
  const uint64_t period = config_.keepalive * kSecond;
  if (period == 0 || now < keep_alive_at_) return;
  // Most streams are gone by that age, and cost nothing.
  const uint64_t age = std::min(period, 5 * kSecond);
  keep_alive_at_ = now + age / 2;
  const std::unique_lock lock(recv_lock(), std::try_to_lock);
  if (!lock) {
    keep_alive_at_ = now;  // at the next tick
    return;
  }
  try {
    for (Stream* const stream : open_locked()) {
      if (!stream->is_bound() || now < StreamReopening(*stream).bound_at() + age ||
          !stream->receiver().mutex().try_lock())
        continue;
      const SideGuard side(stream->receiver(), std::adopt_lock);
      stream->keep_alive().begin_locked(static_cast<int>(config_.keepalive));
    }
  } catch (const std::bad_alloc&) {
    // Try another time.
  }
}

}  // namespace sidestep::engine

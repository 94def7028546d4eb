// How a blocking call on a tracked socket waits: it polls, and then sleeps until its peer, the
// anchor, a signal or its time limit wakes it.
#include <poll.h>

#include "engine/node/node.hpp"
#include "engine/progress/wait.hpp"
#include "engine/progress/waiter.hpp"
#include "preload/signals.hpp"
#include "preload/socket.hpp"
#include "preload/thread_sleep.hpp"

namespace sidestep::preload {

using engine::Carrier;
namespace sys = engine::sys;

namespace {

/// The longest sleep of a thread that waits for more bytes than the kernel already has.
constexpr timespec kLookAgain{0, 10'000'000};
/// The sleep of a thread that nothing can wake.
constexpr timespec kMoment{0, 1'000'000};

}  // namespace

int Socket::wait(bool for_reading, uint32_t sequence, uint64_t deadline,
                 const Interruptions& interruptions, bool for_more) noexcept {
  engine::Node* const node = engine::Node::running();  // null in a child that has forked
  stream_->clearance().note_waiting();
  const bool timed = deadline != kForever;
  const auto interruption = [&] {
    if (engine::cancellation_is_due() || was_given_up_.load(std::memory_order_relaxed))
      return kBeginAnew;
    if (timed ? interruptions.any() : interruptions.without_restart()) return EINTR;
    return handler_waits() ? kBeginAnew : 0;
  };
  if (const int error = interruption(); error != 0) return error;
  const auto carrier = [&] { return for_reading ? receiver().carrier() : sender().carrier(); };
  const auto changed = [&] {
    return (for_reading ? receiver().sequence() : sender().sequence()) != sequence;
  };
  const auto anchor_tells = [&] {
    return carrier() == Carrier::kernel &&
           (for_reading ? !receiver().end_is_questioned() : !sender().awaits_return());
  };
  const bool on_engine = carrier() == Carrier::engine;
  const auto ready = [&] { return changed() || (!for_reading && sender().can_send()); };
  if (!for_reading && on_engine && sender().can_send_or_wants_space()) return 0;
  if (on_engine && engine::spin_until(node->progress(), engine::SpinPeer(*stream_), ready))
    return 0;

  engine::Sleeper* const sleeper = engine::Sleeper::mine();
  if (sleeper == nullptr) [[unlikely]] {
    // There is no memory to be woken by, so the caller looks again after a moment.
    sys::ppoll(nullptr, 0, &kMoment, nullptr);
    return timed && engine::now_ns() >= deadline ? EAGAIN : 0;
  }
  engine::Waiter waiter(*sleeper);
  stream_->watches().add(waiter);
  int result = 0;
  {
    ThreadSleep sleep(*sleeper);
    engine::Endpoint* const waker =
        for_reading && node != nullptr ? engine::waker_of(node->progress(), *stream_) : nullptr;
    const ThreadSleep::Napped napped{waker, &*stream_, &waiter};
    if (waker != nullptr) {
      sleep.nap(node->progress(), {&napped, 1});
    } else if (stream_->is_bound()) {  // else nothing on the devices could concern the stream
      sleep.park(node->progress());
    }
    pollfd fds[1 + ThreadSleep::kOwnFds] = {};
    const auto ask = [&] {
      // If the engine carries the direction, only the stream reports news, including news of its
      // anchor, which the progress thread hears.
      const bool by_anchor = anchor_tells();
      const int events = for_more ? POLLRDHUP : for_reading ? POLLIN | POLLRDHUP : POLLOUT;
      fds[0] = {by_anchor ? anchor() : -1, static_cast<short>(events), 0};
      return by_anchor;
    };
    timespec left{};
    const auto limit = [&]() -> const timespec* {
      if (timed) {
        const uint64_t now = engine::now_ns();
        const uint64_t rest = now < deadline ? deadline - now : 0;
        left = {static_cast<time_t>(rest / 1'000'000'000), static_cast<long>(rest % 1'000'000'000)};
      }
      // The kernel does not report more bytes if there are some already.
      if (for_more && carrier() == Carrier::kernel &&
          (!timed || left.tv_sec != 0 || left.tv_nsec > kLookAgain.tv_nsec))
        return &kLookAgain;
      return timed ? &left : nullptr;
    };
    result = sleep.sleep(
        fds, ask, limit, [&] { return changed() || (on_engine && ready()); },
        [&] { return interruption() != 0; });
  }
  stream_->watches().remove(waiter);
  if (result > 0) return 0;
  if (result == -EINTR) {
    // As in the kernel, a timed call is never restarted.
    if (timed) return engine::cancellation_is_due() ? kBeginAnew : EINTR;
    if (const int error = interruption(); error != 0) return error;
    return interruptions.any() || all_handlers_restart() ? 0 : EINTR;
  }
  if (result == 0 && for_more && engine::now_ns() < deadline) return 0;
  return result == 0 ? EAGAIN : 0;
}

}  // namespace sidestep::preload

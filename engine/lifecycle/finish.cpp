// The end of the process, or its change into another program: what was sent has to arrive.
#include <mutex>

#include "engine/base/clock.hpp"
#include "engine/connection/connection.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/patience.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

NodeStreams::Finish NodeStreams::finish(bool ended) noexcept {
  // Over shared memory everything is out at once. An adapter may have to send a packet again, and
  // stops doing so when the process ends; the kernel, which lives on, would try for minutes.
  constexpr uint64_t kUnflushed = 5'000'000'000;
  constexpr uint64_t kDeferred = 500'000'000;  // marks that wait for an answer
  const uint64_t start = now_ns();
  Patience patience(kUnflushed);
  const auto is_vain = [&](Connection& connection) {
    return patience.is_vain(connection, Patience::Awaits::engine);
  };
  Finish finish;
  for (;;) {
    progress_.poll();
    // Only try: a program that ends in a signal handler may hold the lock itself.
    const bool looked = recv_lock().try_lock();
    bool flushed = looked;
    if (looked) {
      const std::lock_guard guard(recv_lock(), std::adopt_lock);
      for (const auto& connection : progress_.connections().all()) {
        finish.tells_peers = finish.tells_peers || !connection->endpoint().is_ordered();
        connection->endpoint().use_reserve();
        flushed = (connection->is_flushed() || is_vain(*connection)) && flushed;
      }
      finish.said_all = flushed && !progress_.deferred().has_any_but(is_vain);
      if (finish.said_all && ended) {
        is_over_.store(true, std::memory_order_relaxed);
        for (const auto& connection : progress_.connections().all()) connection->endpoint().leave();
      }
    }
    if (finish.said_all || now_ns() - start > (looked && !flushed ? kUnflushed : kDeferred)) break;
    if (!patience.pause()) break;
  }
  return finish;
}

}  // namespace sidestep::engine

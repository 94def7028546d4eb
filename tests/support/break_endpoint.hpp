#pragma once
/// Makes the node's connection to itself fail: what was posted and not polled will not be polled.
#include "engine/connection/connection.hpp"
#include "engine/shm/layout.hpp"

namespace sidestep::tests {

inline void break_endpoint(engine::Connection& connection) noexcept {
  // What no peer writes: the node is its own peer, and the region is the one it writes itself. A
  // release that is overwritten here is made up for by the next.
  std::byte* const ring = connection.endpoint().orb_memory().data();
  auto* control = reinterpret_cast<engine::shm::Control*>(ring - engine::shm::kOrbOffset);
  // A release by another thread between the two may hide it.
  while (!connection.endpoint().is_broken()) {
    const uint64_t released = control->released_position.exchange(~uint64_t{0});
    connection.endpoint().completed();
    control->released_position.store(released);
  }
}

}  // namespace sidestep::tests

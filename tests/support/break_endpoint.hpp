#pragma once
/// Makes the node's connection to itself fail: work that was posted but not polled will not be
/// polled.
#include "engine/connection/connection.hpp"
#include "engine/shm/layout.hpp"

namespace sidestep::tests {

inline void break_endpoint(engine::Connection& connection) noexcept {
  // Writes a value that no peer writes. The node is its own peer, so the region is the one that it
  // writes itself. If this overwrites a release, the next release makes up for it.
  std::byte* const ring = connection.endpoint().orb_memory().data();
  auto* control = reinterpret_cast<engine::shm::Control*>(ring - engine::shm::kOrbOffset);
  // The loop is needed because a release by another thread, between the exchange and completed(),
  // may hide the value.
  while (!connection.endpoint().is_broken()) {
    const uint64_t released = control->released_position.exchange(~uint64_t{0});
    connection.endpoint().completed();
    control->released_position.store(released);
  }
}

}  // namespace sidestep::tests

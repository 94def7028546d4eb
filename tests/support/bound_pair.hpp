#pragma once
/// A tracked pair whose two streams have left the kernel.
#include <chrono>
#include <thread>

#include "engine/node/node.hpp"
#include "engine/node/status.hpp"
#include "tests/support/tracked_pair.hpp"

namespace sidestep::tests {

/// Polls, as a waiting thread of the program would, until `holds` returns true. Returns false when
/// the time is over.
template <typename Holds>
bool eventually_within(int milliseconds, Holds holds) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    engine::Node::running()->progress().poll();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

template <typename Holds>
bool eventually(Holds holds) {
  return eventually_within(5000, holds);
}

class BoundPair : public TrackedPair {
 public:
  explicit BoundPair(bool nonblocking = true) : TrackedPair(nonblocking) {
    for (const size_t end : {0u, 1u}) {
      stream(end).receiver().note_reading();
      stream(end).sender().note_writing();
    }
    // The limit is long because giving up ends the whole run, and the machine may be busy with
    // something else.
    if (!eventually_within(20'000, [this] { return is_up(); })) {
      std::fputs(engine::status_json(*engine::Node::running(), true).c_str(), stderr);
      errno = ETIMEDOUT;
      give_up("moving a loopback stream up");
    }
    // The marks that announce the switches have been posted, but not all of them polled.
    engine::Node::running()->progress().drain();
  }
  /// True if both directions are on the engine.
  bool is_up() const noexcept {
    for (const size_t end : {0u, 1u})
      if (!stream(end).is_bound() || stream(end).sender().carrier() != engine::Carrier::engine)
        return false;
    return true;
  }
};

}  // namespace sidestep::tests

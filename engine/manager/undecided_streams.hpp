#pragma once
/// What the manager does with a stream of this node that is undecided: it looks whether the stream
/// is still there, enters it in the directory, binds it to a connection, or leaves it to the kernel
/// (stream/undecided.hpp).
///
/// Streams are named by id and generation, because their owner may close them at any time. Each
/// call takes the receive lock for a moment. The manager's thread makes all calls. It owns nothing.
#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/base/reason.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

class Connection;

/// This node's end of a stream that is undecided and may move.
struct UndecidedEnd {
  uint32_t stream = 0;
  uint32_t generation = 0;
  int anchor = -1;  ///< -1: there is no such stream
  bool accepted = false;
};

/// A stream of this node that is to be bound, and the stream at its other end.
struct StreamPair {
  uint32_t stream, generation, peer_stream, peer_generation;
};

/// How long a stream for which nothing can be done now stays on the kernel.
enum class Until { ever, later };

class UndecidedStreams {
 public:
  explicit UndecidedStreams(const ThisNode& node) noexcept : node_(node) {}
  UndecidedStreams(const UndecidedStreams&) = delete;

  /// Finds one among those that the program has connected.
  UndecidedEnd find(const Tuple& tuple);
  UndecidedEnd find(uint32_t stream, uint32_t generation);
  /// True if the stream is undecided, even if it can't move.
  bool has(uint32_t stream, uint32_t generation);
  /// Enters those that the program has connected, and that have come of age, in the directory.
  void list_grown(uint64_t now);
  void stay_on_kernel(uint32_t stream, uint32_t generation, Reason reason,
                      Until until = Until::ever);
  void bind(Connection& connection, const StreamPair& pair);

 private:
  const ThisNode& node_;
};

}  // namespace sidestep::engine

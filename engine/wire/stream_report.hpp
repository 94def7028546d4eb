#pragma once
/// What the two ends of a failed connection tell each other about its streams
/// (stream/recovery.hpp), in a memfd inside a host and in datagrams between hosts.
#include <cstdint>

namespace sidestep::engine {

/// One stream, as one end sees it. Little-endian.
struct StreamReport {
  static constexpr uint32_t kEnded = 1;     ///< the sender of the report has ended its direction
  static constexpr uint32_t kOnEngine = 2;  ///< its direction was on the engine
  /// In a report of stream 0: the connection did not fail but made way for another, and its streams
  /// may be joined anew.
  static constexpr uint32_t kMadeWay = 4;
  uint32_t stream;      // 0: the receiver's id of the stream
  uint32_t generation;  // 4
  uint64_t sent;        // 8: bytes over the engine
  uint64_t received;    // 16
  uint32_t flags;       // 24
  uint32_t reserved;    // 28: zero
};
static_assert(sizeof(StreamReport) == 32);

}  // namespace sidestep::engine

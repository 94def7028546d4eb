#pragma once
/// What a node sends and receives in one measurement. Two kinds: StreamTraffic, RawTraffic.
///
/// The node's main thread drives a measurement: it calls begin(), takes the snapshots around the
/// measured time, calls stop(), and, when the coordinator knows what every node has sent, drain().
/// Exactly that must have arrived then.
#include <cstdint>
#include <vector>

#include "tests/bench/histogram.hpp"

namespace sidestep::bench {

/// The number of complete messages from this node to `peer` over stream `number`.
struct SentCount {
  unsigned peer;
  unsigned number;
  uint64_t messages;
};

struct Amount {
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

class Traffic {
 public:
  virtual ~Traffic() = default;
  /// Starts the threads, which begin at `start` (engine::now_ns() time).
  virtual void begin(uint64_t start) = 0;
  /// Returns what has arrived so far. May be called at any time.
  virtual Amount received() = 0;
  /// Sets whether round trips are counted.
  virtual void measure(bool on) = 0;
  /// Stops sending after a complete message. Receiving goes on.
  virtual std::vector<SentCount> stop() = 0;
  /// Returns when the messages of `expected` (what each peer has sent here) have arrived and the
  /// threads have ended. Throws Failure if they do not arrive, or if more or others do.
  virtual void drain(const std::vector<SentCount>& expected) = 0;
  /// Returns the times of the round trips.
  virtual Histogram::Sparse round_trips() { return {}; }
  /// Returns how many sleeps ran into their time limit although there was something to do.
  virtual uint64_t lost_wakeups() { return 0; }
};

}  // namespace sidestep::bench

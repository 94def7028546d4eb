#pragma once
/// What a node sends and receives in one measurement. Two kinds: StreamTraffic, RawTraffic.
///
/// The life of a measurement, driven by the node's main thread: begin(), the snapshots around the
/// measured time, stop(), and when the coordinator knows what every node has sent, drain(). What
/// arrives must then be exactly that.
#include <cstdint>
#include <vector>

#include "tests/bench/histogram.hpp"

namespace sidestep::bench {

/// Complete messages from this node to `peer`, by stream `number`.
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
  /// What has arrived so far; any time.
  virtual Amount received() = 0;
  /// Whether round trips count.
  virtual void measure(bool on) = 0;
  /// Ends the sending at a whole message. Receiving goes on.
  virtual std::vector<SentCount> stop() = 0;
  /// Returns when the messages of `expected` (what each peer has sent here) have arrived and the
  /// threads have ended. Throws Failure when they do not, or more or others do.
  virtual void drain(const std::vector<SentCount>& expected) = 0;
  /// Round trips.
  virtual Histogram::Sparse round_trips() { return {}; }
  /// Sleeps that their time limit ended although there was something to do.
  virtual uint64_t lost_wakeups() { return 0; }
};

}  // namespace sidestep::bench

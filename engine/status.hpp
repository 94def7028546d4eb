#pragma once
/// The status document: what `sidestep stat` shows and SIDESTEP_STATS_FILE receives. JSON.
///
/// The dotted names are an interface: `streams.total`, `streams.engine`, `bytes.tx.engine`,
/// `bytes.rx.engine`, `bytes.tx.kernel`, `bytes.rx.kernel`, `switches.up`, `switches.down`. Each
/// appears twice, as a path of nested objects and as one flat key, so both ways of addressing it
/// work.
#include <cstdint>
#include <map>
#include <string>

#include "engine/base/reason.hpp"

namespace sidestep::engine {

class Node;
class Stream;

/// Totals of streams.
struct StreamTotals {
  uint64_t total = 0;
  uint64_t engine = 0;  ///< streams of which the engine carried at least one byte
  uint64_t tx_engine = 0, rx_engine = 0, tx_kernel = 0, rx_kernel = 0;
  /// Reasons of streams that did not (wholly) leave the kernel.
  std::map<Reason, uint64_t> kernel_reasons;

  /// Adds a stream as it stands now; its anchor is still open.
  void add(const Stream& stream);
};

/// Returns the document; `with_streams` adds the list of open streams.
std::string status_json(Node& node, bool with_streams);

}  // namespace sidestep::engine

#pragma once
/// The status document: what `sidestep stat` shows and SIDESTEP_STATS_FILE receives. JSON.
///
/// The dotted names are an interface: `streams.total`, `streams.engine`, `bytes.tx.engine`,
/// `bytes.rx.engine`, `bytes.tx.kernel`, `bytes.rx.kernel`, `switches.up`, `switches.down`. Each
/// appears twice, as a path of nested objects and as one flat key, so both ways of addressing it
/// work.
#include <string>

namespace sidestep::engine {

class Node;

/// Returns the document; `with_streams` adds the list of open streams.
std::string status_json(Node& node, bool with_streams);

}  // namespace sidestep::engine

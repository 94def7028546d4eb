#pragma once
/// A connection that failed while both of its nodes live: its streams go on over their anchors.
///
/// Each end stops polling the connection and closes its ring. Then it tells the other end for every
/// stream how many bytes it has sent and received over the engine (StreamReport, over the control
/// link). Neither number changes any more. The bytes that a sender has sent beyond the peer's count
/// are still in its ring, because the device has not confirmed them. They go out through the anchor
/// first, and the program's further bytes behind them. The receiver reads what had arrived, and
/// then the anchor.
///
/// If the bytes cannot be placed, the stream ends with ECONNRESET at both ends. That is so when the
/// direction had ended, so that the anchor takes nothing more; when it had moved down before, so
/// that later bytes are on the anchor already; or when one end has no report of the stream.
#include <span>
#include <vector>

#include "engine/wire/stream_report.hpp"

namespace sidestep::engine {

/// What is known about a peer to which there is no connection any more. `left`: it has ended, and
/// everything that it had to say over the engine has arrived.
enum class PeerProcess { may_live, ended, left };

/// Returns a memfd with the reports, for a control message; -1 if the kernel gives none. The caller
/// closes it.
int write_reports(std::span<const StreamReport> reports) noexcept;
/// Returns the reports in such a descriptor; none if it holds anything else. Throws std::bad_alloc.
std::vector<StreamReport> read_reports(int fd);

}  // namespace sidestep::engine

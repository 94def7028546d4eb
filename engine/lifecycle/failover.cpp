// What the node does to a connection and to all of its streams when the connection fails or its
// peer ends (stream/recovery.hpp).
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/stream_failover.hpp"

namespace sidestep::engine {
namespace {

using StreamName = std::pair<uint32_t, uint32_t>;  // the peer's id and generation
using Unconfirmed = std::map<StreamName, std::vector<std::byte>>;

/// Appends to each of the named streams the data that the ring still holds for it.
void collect_from_ring(const Orb& orb, uint64_t end, Unconfirmed& streams) {
  // A thread that had reserved before the ring was closed may still be copying.
  const uint64_t limit = now_ns() + 1'000'000'000;
  for (uint64_t position = orb.front(); position < end;) {
    const uint32_t size = orb.committed_size(position);
    if (size == 0) {
      if (now_ns() > limit) return;  // everything after this counts as missing
      sys::sched_yield();
      continue;
    }
    FragmentHeader header;
    std::memcpy(&header, orb.at(position), sizeof header);
    const auto found = streams.find({header.stream, header.generation});
    if (found != streams.end() && static_cast<FragmentType>(header.type) == FragmentType::data) {
      const std::byte* payload = orb.at(position) + sizeof header;
      found->second.insert(found->second.end(), payload, payload + header.length);
    }
    position += size;
  }
}

}  // namespace

void NodeStreams::end_streams_locked(Connection& connection, PeerProcess peer) noexcept {
  connection.awaits_report = false;
  if (peer == PeerProcess::ended && connection.endpoint().peer_has_left()) peer = PeerProcess::left;
  connection.for_streams([&](Stream& stream) {
    StreamFailover(stream).end(peer);
    if (stream.is_closed()) retry_later(stream);
  });
  progress_.deferred().run_locked(true);
  progress_.connections().sweep();
}

void NodeStreams::lose_connection(Connection& connection, const char* why,
                                  PeerProcess peer) noexcept {
  const ReceiveLockGuard guard(recv_lock());
  if (!connection.is_closed()) progress_.close_locked(connection, why);
  end_streams_locked(connection, peer);
}

std::vector<StreamReport> NodeStreams::fail_connection(Connection& connection,
                                                       const char* why) noexcept {
  std::vector<StreamReport> reports;
  const ReceiveLockGuard guard(recv_lock());
  progress_.close_locked(connection, why);
  connection.awaits_report = true;
  try {
    if (connection.makes_way) reports.push_back({0, 0, 0, 0, StreamReport::kMadeWay, 0});
    connection.for_streams([&](Stream& stream) {
      if (!stream.is_aborted()) reports.push_back(StreamFailover(stream).report());
    });
  } catch (const std::bad_alloc&) {
    // A stream that the peer hears nothing about ends with an error, there and here.
  }
  return reports;
}

void NodeStreams::fail_over_streams(Connection& connection,
                                    std::span<const StreamReport> reports) noexcept {
  const ReceiveLockGuard guard(recv_lock());
  try {
    Unconfirmed unconfirmed;
    std::vector<std::pair<Stream*, const StreamReport*>> landing;
    for (const StreamReport& report : reports) {
      if (report.stream == 0 && (report.flags & StreamReport::kMadeWay) != 0)
        connection.makes_way_at_peer = true;
      Stream* stream = table_.find(report.stream, report.generation);
      if (stream == nullptr || stream->connection() != &connection ||
          !StreamFailover(*stream).can_fail_over(report))
        continue;
      landing.emplace_back(stream, &report);
      if (report.received != stream->sender().engine_bytes())
        unconfirmed[StreamFailover(*stream).name_at_peer()] = {};
    }
    collect_from_ring(connection.orb(), connection.orb_end, unconfirmed);
    for (const auto& [stream, report] : landing) {
      StreamFailover failover(*stream);
      if (!failover.is_to_fail_over()) continue;  // reported twice
      const uint64_t missing = stream->sender().engine_bytes() - report->received;
      std::vector<std::byte> bytes;
      if (missing != 0) bytes = std::move(unconfirmed[failover.name_at_peer()]);
      if (bytes.size() < missing) continue;
      bytes.erase(bytes.begin(), bytes.end() - static_cast<ptrdiff_t>(missing));
      failover.fail_over(*report, std::move(bytes));
    }
    // The peer does not mention the streams of which it has not heard.
    connection.for_streams([](Stream& stream) { StreamFailover(stream).stay_if_it_never_left(); });
  } catch (const std::bad_alloc&) {
    log(LogLevel::error, "out of memory: streams of a failed connection are reset");
  }
  end_streams_locked(connection, PeerProcess::may_live);
}

}  // namespace sidestep::engine

// What the node does to a connection and to all of its streams when the connection fails or its
// peer ends (stream/recovery.hpp).
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/waiter.hpp"
#include "engine/stream/recovery.hpp"

namespace sidestep::engine {
namespace {

using StreamName = std::pair<uint32_t, uint32_t>;  // the peer's id and generation
using Unconfirmed = std::map<StreamName, std::vector<std::byte>>;

/// Appends to each of the named streams the data of it that the ring still holds.
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
  connection.for_streams([&](Stream& one) {
    Stream* const stream = &one;
    // The stream was asked to hold when it had sent nothing over the engine that could come back:
    // the peer may have gone before it heard the answer.
    if (stream->awaits_hand_back() && stream->never_used_engine()) stream->end_hand_back(0);
    if (stream->awaits_hand_back()) {
      stream->die(ECONNRESET);
    } else if (stream->phase() == Phase::kernel) {
      stream->forget_engine();
    } else if (stream->has_only_replay() && !stream->landed_) {
      stream->forget_engine();
      stream->defer(Stream::kReplay | Stream::kSettle);
    } else if (!stream->landed_ && !stream->is_dead() && peer != PeerProcess::may_live &&
               stream->has_all_of_gone_peer(peer == PeerProcess::left)) {
      stream->go_on_alone(stream->peer_fin_, {});
    } else if (!stream->landed_) {
      stream->die(ECONNRESET);
    }
    if (stream->closed_) retry_later(*stream);
  });
  progress_.deferred().run_locked(true);
  progress_.connections().sweep();
}

void NodeStreams::lose_connection(Connection& connection, const char* why,
                                  PeerProcess peer) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock().lock();
  if (!connection.is_dead()) progress_.close_locked(connection, why);
  end_streams_locked(connection, peer);
  recv_lock().unlock();
}

std::vector<StreamReport> NodeStreams::fail_connection(Connection& connection,
                                                       const char* why) noexcept {
  std::vector<StreamReport> reports;
  WakeBatch wake_ups_after_the_lock;
  recv_lock().lock();
  progress_.close_locked(connection, why);
  connection.awaits_report = true;
  try {
    if (connection.makes_way) reports.push_back({0, 0, 0, 0, StreamReport::kMadeWay, 0});
    connection.for_streams([&](Stream& stream) {
      if (!stream.is_dead())
        reports.push_back(stream.is_bound() ? stream.strand() : stream.report_settled());
    });
  } catch (const std::bad_alloc&) {
    // A stream that the peer hears nothing about ends with an error, there and here.
  }
  recv_lock().unlock();
  return reports;
}

void NodeStreams::land_streams(Connection& connection,
                               std::span<const StreamReport> reports) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock().lock();
  try {
    Unconfirmed unconfirmed;
    std::vector<std::pair<Stream*, const StreamReport*>> landing;
    for (const StreamReport& report : reports) {
      if (report.stream == 0 && (report.flags & StreamReport::kMadeWay) != 0)
        connection.makes_way_at_peer = true;
      Stream* stream = table_.find(report.stream, report.generation);
      if (stream == nullptr || stream->connection() != &connection || !stream->is_bound() ||
          stream->is_dead() || stream->landed_ || !stream->can_land(report))
        continue;
      landing.emplace_back(stream, &report);
      if (report.received != stream->tx_engine())
        unconfirmed[{stream->peer_stream_, stream->peer_generation_}] = {};
    }
    collect_from_ring(connection.orb(), connection.orb_end, unconfirmed);
    for (const auto& [stream, report] : landing) {
      if (stream->landed_) continue;  // reported twice
      const uint64_t missing = stream->tx_engine() - report->received;
      std::vector<std::byte> bytes;
      if (missing != 0)
        bytes = std::move(unconfirmed[{stream->peer_stream_, stream->peer_generation_}]);
      if (bytes.size() < missing) continue;
      bytes.erase(bytes.begin(), bytes.end() - static_cast<ptrdiff_t>(missing));
      stream->land(*report, std::move(bytes));
    }
    // The peer has not heard of a stream that it does not mention: the connection failed before the
    // first fragment of that stream got through. The stream stays where it was.
    connection.for_streams([](Stream& stream) {
      if (stream.is_bound() && !stream.is_dead() && !stream.landed_ && stream.never_used_engine())
        stream.land({}, {});
    });
  } catch (const std::bad_alloc&) {
    log(LogLevel::error, "out of memory: streams of a failed connection are reset");
  }
  end_streams_locked(connection, PeerProcess::may_live);
  recv_lock().unlock();
}

}  // namespace sidestep::engine

#include "engine/recovery.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/node.hpp"
#include "engine/waiter.hpp"

namespace sidestep::engine {
namespace {

constexpr size_t kMaxReports = 1U << 18;  // twice as many streams as a node can have

/// Whether a receiver who has `received` bytes can get the rest of what `report` says was sent.
bool can_place(const StreamReport& report, uint64_t received) noexcept {
  if (report.sent == received) return true;
  const uint32_t state = report.flags & (StreamReport::kEnded | StreamReport::kOnEngine);
  return report.sent > received && state == StreamReport::kOnEngine;
}

using StreamName = std::pair<uint32_t, uint32_t>;  // the peer's id and generation
using Unconfirmed = std::map<StreamName, std::vector<std::byte>>;

/// Appends to each of the named streams what the ring still has of its data.
void collect_from_ring(const Orb& orb, uint64_t end, Unconfirmed& streams) {
  // A thread that had reserved before the ring was closed may still be copying.
  const uint64_t limit = now_ns() + 1'000'000'000;
  for (uint64_t position = orb.front(); position < end;) {
    const uint32_t size = orb.committed_size(position);
    if (size == 0) {
      if (now_ns() > limit) return;  // what lies behind counts as missing
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

// ---- the document

int write_reports(std::span<const StreamReport> reports) noexcept {
  const int fd = sys::memfd_create("sidestep-reports", MFD_CLOEXEC);
  if (fd < 0) return -1;
  const auto bytes = std::as_bytes(reports);
  for (size_t done = 0; done < bytes.size();) {
    const long written = sys::write(fd, bytes.data() + done, bytes.size() - done);
    if (written <= 0) {
      sys::close(fd);
      return -1;
    }
    done += static_cast<size_t>(written);
  }
  return fd;
}

std::vector<StreamReport> read_reports(int fd) {
  std::vector<StreamReport> reports;
  StreamReport part[128];
  // pread, because the offset is the writer's too; no mapping, which the writer could cut short.
  for (long offset = 0; reports.size() <= kMaxReports;) {
    const long n = sys::call(SYS_pread64, fd, part, sizeof part, offset);
    if (n == 0) return reports;
    if (n < 0 || n % static_cast<long>(sizeof(StreamReport)) != 0) break;
    reports.insert(reports.end(), part, part + static_cast<size_t>(n) / sizeof(StreamReport));
    offset += n;
  }
  return {};
}

// ---- a stream

StreamReport Stream::strand() noexcept {
  // Under the lock no send is between its reservation and its count.
  send_lock_.lock();
  // An end whose mark may not have arrived is repeated on the anchor, which is open until then.
  const bool ended = tx_fin_ && fin_sent() && !shuts_anchor_;
  // Who closes from now on leaves the anchor open until what is missing has gone out.
  if (tx_fin_ && !ended && !reset_sent_.load(std::memory_order_relaxed))
    fin_sent_.store(false, std::memory_order_relaxed);
  reported_flags_ = (ended ? StreamReport::kEnded : 0) |
                    (tx_carrier() == Carrier::engine ? StreamReport::kOnEngine : 0);
  const uint64_t sent = tx_engine();
  stay_down_.store(true, std::memory_order_relaxed);
  set_reason(connection()->down_reason);
  has_kept_ = false;
  unlock_send();
  const uint64_t received = rx_arrived_.load(std::memory_order_relaxed);
  return {peer_stream_, peer_generation_, sent, received, reported_flags_, 0};
}

StreamReport Stream::report_settled() const noexcept {
  return {peer_stream_,
          peer_generation_,
          tx_engine(),
          rx_arrived_.load(std::memory_order_relaxed),
          0,
          0};
}

bool Stream::can_land(const StreamReport& theirs) const noexcept {
  const StreamReport mine{0, 0, tx_engine(), 0, reported_flags_, 0};
  return !awaits_hand_back() && can_place(theirs, rx_arrived_.load(std::memory_order_relaxed)) &&
         can_place(mine, theirs.received);
}

bool Stream::never_used_engine() const noexcept {
  return tx_carrier() == Carrier::kernel && tx_engine() == tx_at_bind_ && !engine_sends_ &&
         !peer_fin_ && rx_arrived_.load(std::memory_order_relaxed) == rx_at_bind_;
}

bool Stream::has_all_of_gone_peer(bool left) const noexcept {
  // Behind its end mark there is nothing. A direction that has not moved is the anchor's, if no
  // move was under way: a peer that was killed may have made it, and not have got that out.
  if (left) return peer_fin_ || !engine_sends_;
  return peer_fin_ || (rx_complete() && tx_carrier() == Carrier::kernel);
}

void Stream::land(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept {
  if (connection()->makes_way_at_peer)
    set_reason("its connection made way for another at the peer");
  // Over shared memory a connection fails only when somebody has written nonsense: that is not
  // repeated.
  if (connection()->makes_way || connection()->makes_way_at_peer || !shares_host())
    node_->expect_return_locked(*this);
  const bool was_up = tx_carrier() == Carrier::engine;
  go_on_alone((theirs.flags & StreamReport::kEnded) != 0, std::move(unconfirmed));
  if (was_up) node_->count_switch_down(*this);  // one whose peer has ended is no move
}

void Stream::go_on_alone(bool ended, std::vector<std::byte> unconfirmed) noexcept {
  landed_ = true;
  engine_sends_ = false;
  uint32_t news = kWritable;
  if (!peer_fin_) {
    news |= kReadable;
    const SegmentKind kind = ended ? SegmentKind::fin : SegmentKind::switch_down;
    queue_.push({nullptr, nullptr, nullptr, 0, 0, kind});
    peer_fin_ = ended;
  }
  rx_ended_.store(true, std::memory_order_release);
  node_->counters().replayed_bytes.add(unconfirmed.size());
  send_lock_.lock();
  tx_engine_.store(tx_engine() - unconfirmed.size(), std::memory_order_relaxed);
  bool lost = false;
  try {
    // What was handed back and is not out yet goes before that.
    if (replay_.empty()) replay_.swap(unconfirmed);
    for (const auto* bytes : {&unconfirmed, &held_, &kept_})
      replay_.insert(replay_.end(), bytes->begin(), bytes->end());
  } catch (const std::bad_alloc&) {
    lost = true;
  }
  kept_ = {};
  held_ = {};
  held_changed_locked();
  has_replay_.store(!replay_.empty(), std::memory_order_release);
  tx_landed_ = true;
  tx_carrier_.store(Carrier::kernel, std::memory_order_relaxed);
  unlock_send();
  if (lost) return die(ENOBUFS);
  defer(kReplay | kShut | kSettle);
  signal(news);
}

void Stream::be_left_alone(const char* reason) noexcept {
  stay_down_.store(true, std::memory_order_relaxed);
  for_good_.store(true, std::memory_order_relaxed);
  end_believed_.store(true, std::memory_order_relaxed);  // there is nobody to be asked
  // Who has asked to be held for is answered, and nothing is handed back. Before the look: a thread
  // that is about to hold finds it, or its hold is ended here (hand_back.cpp).
  on_hold(HoldPayload::kNotHeld);
  holds_no_more_.store(true, std::memory_order_seq_cst);
  end_hand_back(0);
  if (phase() == Phase::kernel) {
    forget_engine();
  } else {
    set_reason(reason);
    go_on_alone(false, {});
  }
  node_->stream_ended(*this);
}

void Stream::forget_engine() noexcept {
  landed_ = true;
  send_lock_.lock();
  tx_landed_ = true;
  unlock_send();
}

size_t Stream::keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                      size_t length) noexcept {
  constexpr size_t kMost = 64 * 1024;
  if (has_kept_ || (!connection()->is_dead() && !awaits_hand_back()) || is_dead()) return 0;
  try {
    // Landed already: those that are sent again have not all gone out.
    std::vector<std::byte>& last = tx_landed_ ? replay_ : kept_;
    const size_t before = last.size();
    last.resize(before + std::min(length, kMost));
    const size_t size =
        copy_from(last.data() + before, vector, count, offset, last.size() - before);
    last.resize(before + size);
    has_kept_ = size != 0;
    return size;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

bool Stream::flush_replay_locked() noexcept {
  if (awaits_hand_back()) return false;
  while (has_replay()) {
    const long sent =
        sys::sendto(anchor(), replay_.data() + replay_done_, replay_.size() - replay_done_,
                    MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
    if (sent == -EAGAIN) return false;
    if (sent > 0) {
      count_kernel_sent(static_cast<uint64_t>(sent));
      replay_done_ += static_cast<size_t>(sent);
    }
    // Any other error is the end of the anchor, which the program learns from its next call.
    if (sent < 0 || replay_done_ == replay_.size()) {
      replay_ = {};
      replay_done_ = 0;
      has_kept_ = false;
      has_replay_.store(false, std::memory_order_release);
    }
  }
  return true;
}

uint32_t Stream::run_stranded_locked(uint32_t bits) noexcept {
  if (!tx_landed_) return bits;  // until the peer has told what it has
  if ((bits & kReset) == 0) {
    if (!flush_replay_locked()) return kReplay;
    // It may have been put off behind the bytes. Not on the kernel for good: there the anchor may
    // be shared with a child, and shutdown() has been passed on if the program called it.
    if (tx_fin_ && phase() != Phase::kernel) {
      sys::shutdown(anchor(), SHUT_WR);
      shuts_anchor_ = false;
    }
  }
  if (tx_fin_ || (bits & kReset) != 0) fin_sent_.store(true, std::memory_order_release);
  defer(kSettle);
  signal(kWritable);
  return 0;
}

// ---- a connection

void Node::close_connection_locked(Connection& connection, const char* why) noexcept {
  // Everything that was confirmed to the peer is in memory and is delivered first.
  connection.endpoint().stop();
  for (Lane& lane : recv_lock_.open()) drain_locked(lane);
  log(LogLevel::info, "connection to node %u (pid %d) is gone: %s", connection.peer().nid,
      connection.peer().pid, why);
  connection.device().remove(connection.endpoint());
  const uint32_t lane_number = connection.lane();
  --connection.device().lanes[lane_number].endpoints;
  recv_lock_.set_used(lane_number,
                      std::any_of(devices_.begin(), devices_.end(), [&](const auto& device) {
                        return device->lanes[lane_number].endpoints != 0;
                      }));
  connection.orb_end = connection.orb().close();
  connections_.retire(connection);
  connection.forget_space();
  counters().connections_lost.add();
  closed_work_requests_.add(connection.work_requests.get());
  closed_fragments_.add(connection.fragments.get());
}

void Node::end_streams_locked(Connection& connection, PeerProcess peer) noexcept {
  connection.awaits_report = false;
  if (peer == PeerProcess::ended && connection.endpoint().peer_has_left()) peer = PeerProcess::left;
  connection.for_streams([&](Stream& one) {
    Stream* const stream = &one;
    // Asked to hold when it had sent nothing by the engine, that could come back: the peer may have
    // gone before it heard the answer.
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
  run_retries_locked(false);
  connections_.sweep();
}

void Node::lose_connection(Connection& connection, const char* why, PeerProcess peer) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  if (!connection.is_dead()) close_connection_locked(connection, why);
  end_streams_locked(connection, peer);
  recv_lock_.unlock();
}

std::vector<StreamReport> Node::fail_connection(Connection& connection, const char* why) noexcept {
  std::vector<StreamReport> reports;
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  close_connection_locked(connection, why);
  connection.awaits_report = true;
  try {
    if (connection.makes_way) reports.push_back({0, 0, 0, 0, StreamReport::kMadeWay, 0});
    connection.for_streams([&](Stream& stream) {
      if (!stream.is_dead())
        reports.push_back(stream.is_bound() ? stream.strand() : stream.report_settled());
    });
  } catch (const std::bad_alloc&) {
    // A stream that the peer hears nothing of ends with an error, there and here.
  }
  recv_lock_.unlock();
  return reports;
}

void Node::land_streams(Connection& connection, std::span<const StreamReport> reports) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  try {
    Unconfirmed unconfirmed;
    std::vector<std::pair<Stream*, const StreamReport*>> landing;
    for (const StreamReport& report : reports) {
      if (report.stream == 0 && (report.flags & StreamReport::kMadeWay) != 0)
        connection.makes_way_at_peer = true;
      Stream* stream = streams_.find(report.stream, report.generation);
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
    // What the peer does not mention it has not heard of: the connection failed before the first
    // fragment of that stream got through. It stays where it was.
    connection.for_streams([](Stream& stream) {
      if (stream.is_bound() && !stream.is_dead() && !stream.landed_ && stream.never_used_engine())
        stream.land({}, {});
    });
  } catch (const std::bad_alloc&) {
    log(LogLevel::error, "out of memory: streams of a failed connection are reset");
  }
  end_streams_locked(connection, PeerProcess::may_live);
  recv_lock_.unlock();
}

}  // namespace sidestep::engine

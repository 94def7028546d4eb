#include "engine/stream/recovery.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {
namespace {

constexpr size_t kMaxReports = 1U << 18;  // twice as many streams as a node can have

/// Whether a receiver that has `received` bytes can get the rest of what `report` says was sent.
bool can_place(const StreamReport& report, uint64_t received) noexcept {
  if (report.sent == received) return true;
  const uint32_t state = report.flags & (StreamReport::kEnded | StreamReport::kOnEngine);
  return report.sent > received && state == StreamReport::kOnEngine;
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
  // pread, because the writer shares the offset; no mapping, because the writer could truncate it.
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
  uint64_t sent = 0;
  {
    // With the lock held, no send is between its reservation and its count.
    const SendSideGuard guard(*this);
    // An end whose mark may not have arrived is repeated on the anchor, which stays open until
    // then.
    const bool ended = tx_fin_ && fin_sent() && !shuts_anchor_;
    // From now on, a close leaves the anchor open until what is missing has gone out.
    if (tx_fin_ && !ended && !reset_sent_.load(std::memory_order_relaxed))
      fin_sent_.store(false, std::memory_order_relaxed);
    reported_flags_ = (ended ? StreamReport::kEnded : 0) |
                      (tx_carrier() == Carrier::engine ? StreamReport::kOnEngine : 0);
    sent = tx_engine();
    stay_down_.store(true, std::memory_order_relaxed);
    set_reason(connection()->down_reason);
    has_kept_ = false;
  }
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
  // Nothing comes behind the peer's end mark. A direction that has not moved is the anchor's, if no
  // move was under way: a peer that was killed may have moved up without getting the switch out.
  if (left) return peer_fin_ || !engine_sends_;
  return peer_fin_ || (rx_complete() && tx_carrier() == Carrier::kernel);
}

void Stream::land(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept {
  if (connection()->makes_way_at_peer) set_reason(Reason::made_way_at_peer);
  // Over shared memory a connection fails only when somebody has written nonsense, so it is not
  // tried again.
  if (connection()->makes_way || connection()->makes_way_at_peer || !shares_host())
    services_->expect_return_locked(*this);
  const bool was_up = tx_carrier() == Carrier::engine;
  go_on_alone((theirs.flags & StreamReport::kEnded) != 0, std::move(unconfirmed));
  if (was_up) services_->count_switch_down(*this);  // one whose peer has ended makes no move
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
  services_->counters().replayed_bytes.add(unconfirmed.size());
  bool lost = false;
  {
    const SendSideGuard guard(*this);
    tx_engine_.store(tx_engine() - unconfirmed.size(), std::memory_order_relaxed);
    try {
      // Bytes that were handed back and are not out yet go before these.
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
  }
  if (lost) return die(ENOBUFS);
  defer(kReplay | kShut | kSettle);
  signal(news);
}

void Stream::be_left_alone(Reason reason) noexcept {
  stay_down_.store(true, std::memory_order_relaxed);
  for_good_.store(true, std::memory_order_relaxed);
  end_believed_.store(true, std::memory_order_relaxed);  // there is nobody to ask
  // A thread that has asked for a hold gets its answer, and nothing is handed back. holds_no_more_
  // is set before the look: either a thread that is about to hold finds it set, or its hold is
  // ended here (hand_back.cpp).
  on_hold(HoldPayload::kNotHeld);
  holds_no_more_.store(true, std::memory_order_seq_cst);
  end_hand_back(0);
  if (phase() == Phase::kernel) {
    forget_engine();
  } else {
    set_reason(reason);
    go_on_alone(false, {});
  }
  services_->stream_ended(*this);
}

void Stream::forget_engine() noexcept {
  landed_ = true;
  const SendSideGuard guard(*this);
  tx_landed_ = true;
}

size_t Stream::keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                      size_t length) noexcept {
  constexpr size_t kMost = 64 * 1024;
  if (has_kept_ || (!connection()->is_dead() && !awaits_hand_back()) || is_dead()) return 0;
  try {
    // If it has landed already, the bytes that are sent again have not all gone out.
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
    // Any other error means that the anchor has ended; the program learns of it from its next call.
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
  if (!tx_landed_) return bits;  // until the peer has told what it has received
  if ((bits & kReset) == 0) {
    if (!flush_replay_locked()) return kReplay;
    // The end may have been put off behind these bytes. A stream on the kernel for good is left
    // alone: a child may share its anchor, and shutdown() has been passed on if the program called
    // it, unless there were such bytes.
    if (tx_fin_ && (phase() != Phase::kernel || shuts_anchor_)) {
      sys::shutdown(anchor(), SHUT_WR);
      shuts_anchor_ = false;
    }
  }
  if (tx_fin_ || (bits & kReset) != 0) fin_sent_.store(true, std::memory_order_release);
  defer(kSettle);
  signal(kWritable);
  return 0;
}

}  // namespace sidestep::engine

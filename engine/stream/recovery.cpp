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

StreamReport Stream::begin_failover() noexcept {
  uint64_t sent = 0;
  {
    // With the lock held, no send is between its reservation and its count.
    const SideGuard guard(sender_);
    // An end whose mark may not have arrived is repeated on the anchor, which stays open until
    // then.
    const bool ended = sender_.ended_ && sender_.has_told_end() && !sender_.shuts_anchor_;
    // From now on, a close leaves the anchor open until what is missing has gone out.
    if (sender_.ended_ && !ended && !sender_.reset_sent_.load(std::memory_order_relaxed))
      sender_.set_end_told(false);
    sender_.reported_flags_ = (ended ? StreamReport::kEnded : 0) |
                              (sender_.carrier() == Carrier::engine ? StreamReport::kOnEngine : 0);
    sent = sender_.engine_bytes();
    stay_down_.store(true, std::memory_order_relaxed);
    set_reason(connection()->down_reason);
    sender_.has_kept_ = false;
  }
  const uint64_t received = receiver_.arrived_.load(std::memory_order_relaxed);
  return {peer_stream_, peer_generation_, sent, received, sender_.reported_flags_, 0};
}

StreamReport Stream::report_settled() const noexcept {
  return {peer_stream_,
          peer_generation_,
          sender_.engine_bytes(),
          receiver_.arrived_.load(std::memory_order_relaxed),
          0,
          0};
}

bool Stream::can_fail_over(const StreamReport& theirs) const noexcept {
  const StreamReport mine{0, 0, sender_.engine_bytes(), 0, sender_.reported_flags_, 0};
  return !sender_.awaits_return() &&
         can_place(theirs, receiver_.arrived_.load(std::memory_order_relaxed)) &&
         can_place(mine, theirs.received);
}

bool Stream::never_used_engine() const noexcept {
  return sender_.carrier() == Carrier::kernel &&
         sender_.engine_bytes() == sender_.engine_at_bind_ && !receiver_.engine_sends_ &&
         !receiver_.peer_fin_ &&
         receiver_.arrived_.load(std::memory_order_relaxed) == receiver_.arrived_at_bind_;
}

bool Stream::has_all_of_gone_peer(bool left) const noexcept {
  // Nothing comes behind the peer's end mark. A direction that has not moved is the anchor's, if no
  // move was under way: a peer that was killed may have moved up without getting the switch out.
  if (left) return receiver_.peer_fin_ || !receiver_.engine_sends_;
  return receiver_.peer_fin_ || (receiver_.is_complete() && sender_.carrier() == Carrier::kernel);
}

void Stream::fail_over(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept {
  if (connection()->makes_way_at_peer) set_reason(Reason::made_way_at_peer);
  // Over shared memory a connection fails only when somebody has written nonsense, so it is not
  // tried again.
  if (connection()->makes_way || connection()->makes_way_at_peer || !shares_host())
    services_->expect_reopening_locked(*this);
  const bool was_up = sender_.carrier() == Carrier::engine;
  go_on_alone((theirs.flags & StreamReport::kEnded) != 0, std::move(unconfirmed));
  if (was_up) services_->count_switch_down(*this);  // one whose peer has ended makes no move
}

void Stream::go_on_alone(bool ended, std::vector<std::byte> unconfirmed) noexcept {
  failed_over_ = true;
  receiver_.engine_sends_ = false;
  uint32_t news = kWritable;
  if (!receiver_.peer_fin_) {
    news |= kReadable;
    const SegmentKind kind = ended ? SegmentKind::fin : SegmentKind::switch_down;
    receiver_.queue_.push({nullptr, nullptr, nullptr, 0, 0, kind});
    receiver_.peer_fin_ = ended;
  }
  receiver_.ended_.store(true, std::memory_order_release);
  services_->counters().replayed_bytes.add(unconfirmed.size());
  bool lost = false;
  {
    const SideGuard guard(sender_);
    sender_.engine_.store(sender_.engine_bytes() - unconfirmed.size(), std::memory_order_relaxed);
    try {
      // Bytes that were returned and are not out yet go before these.
      if (sender_.replay_.empty()) sender_.replay_.swap(unconfirmed);
      for (const auto* bytes : {&unconfirmed, &sender_.held_, &sender_.kept_})
        sender_.replay_.insert(sender_.replay_.end(), bytes->begin(), bytes->end());
    } catch (const std::bad_alloc&) {
      lost = true;
    }
    sender_.kept_ = std::vector<std::byte>();  // = {} would keep the memory
    sender_.held_ = std::vector<std::byte>();
    sender_.held_changed_locked();
    sender_.failed_over_ = true;
    sender_.enter(sender_.replay_.empty() ? SenderState::kernel : SenderState::replaying);
  }
  if (lost) return abort(ENOBUFS);
  sender_.defer(Sender::kReplay | Sender::kShut);
  receiver_.defer(Receiver::kSettle);
  signal(news);
}

void Stream::be_left_alone(Reason reason) noexcept {
  stay_down_.store(true, std::memory_order_relaxed);
  for_good_.store(true, std::memory_order_relaxed);
  receiver_.end_believed_.store(true, std::memory_order_relaxed);  // there is nobody to ask
  // A thread that has asked for a hold gets its answer, and nothing is returned. holds_no_more_
  // is set before the look: either a thread that is about to hold finds it set, or its hold is
  // ended here (unread_return.cpp).
  receiver_.on_hold(HoldPayload::kNotHeld);
  sender_.holds_no_more_.store(true, std::memory_order_seq_cst);
  sender_.end_return(0);
  if (phase() == Phase::kernel) {
    forget_engine();
  } else {
    set_reason(reason);
    go_on_alone(false, {});
  }
  services_->stream_ended(*this);
}

void Stream::forget_engine() noexcept {
  failed_over_ = true;
  const SideGuard guard(sender_);
  sender_.failed_over_ = true;
}

size_t Sender::keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                      size_t length) noexcept {
  constexpr size_t kMost = 64 * 1024;
  if (has_kept_ || (!stream_.connection()->is_closed() && !awaits_return()) || stream_.is_aborted())
    return 0;
  try {
    // If it has failed over already, the bytes that are sent again have not all gone out.
    std::vector<std::byte>& last = failed_over_ ? replay_ : kept_;
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

bool Sender::flush_replay_locked() noexcept {
  if (awaits_return()) return false;
  while (has_replay()) {
    const long sent =
        sys::sendto(stream_.anchor(), replay_.data() + replay_done_, replay_.size() - replay_done_,
                    MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
    if (sent == -EAGAIN) return false;
    if (sent > 0) {
      count_kernel(static_cast<uint64_t>(sent));
      replay_done_ += static_cast<size_t>(sent);
    }
    // Any other error means that the anchor has ended; the program learns of it from its next call.
    if (sent < 0 || replay_done_ == replay_.size()) {
      replay_ = std::vector<std::byte>();  // = {} would keep the memory
      replay_done_ = 0;
      has_kept_ = false;
      enter(SenderState::kernel);
    }
  }
  return true;
}

uint32_t Sender::run_failover_locked(uint32_t bits) noexcept {
  if (!failed_over_) return bits;  // until the peer has told what it has received
  if ((bits & kReset) == 0) {
    if (!flush_replay_locked()) return kReplay;
    // The end may have been put off behind these bytes. A stream on the kernel for good is left
    // alone: a child may share its anchor, and shutdown() has been passed on if the program called
    // it, unless there were such bytes.
    if (ended_ && (stream_.phase() != Phase::kernel || shuts_anchor_)) {
      sys::shutdown(stream_.anchor(), SHUT_WR);
      shuts_anchor_ = false;
    }
  }
  if (ended_ || (bits & kReset) != 0) set_end_told(true);
  stream_.receiver_.defer(Receiver::kSettle);
  stream_.signal(kWritable);
  return 0;
}

}  // namespace sidestep::engine

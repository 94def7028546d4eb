#include "engine/stream/stream.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/tcp_counts.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

// ---- sending side

size_t Stream::send_engine_locked(const iovec* vector, int count, size_t offset,
                                  size_t length) noexcept {
  size_t done = 0;
  size_t posted = 0;
  uint64_t end = 0;
  uint64_t sent = tx_engine_.load(std::memory_order_relaxed);
  while (done < length) {
    const uint64_t credit = tx_room(sent);
    if (credit == 0) {
      services_->counters().credit_stalls.add();
      break;
    }
    const auto payload = static_cast<uint32_t>(
        std::min({uint64_t{length - done}, credit, uint64_t{connection()->max_payload()}}));
    const uint64_t position = connection()->reserve(payload, false);
    if (position == Orb::kNoSpace) {
      services_->counters().orb_full.add();
      break;
    }
    std::byte* at = connection()->orb().at(position);
    const size_t copied =
        count == 1
            ? copy_in(at + sizeof(FragmentHeader),
                      static_cast<const std::byte*>(vector->iov_base) + offset + done, payload)
            : copy_from(at + sizeof(FragmentHeader), vector, count, offset + done, payload);
    // If memory went away since the caller looked, the reserved space must be committed all the
    // same, as nobody's; otherwise the ring would end here.
    const bool whole = copied == payload;
    const FragmentHeader header{peer_stream_,
                                payload,
                                whole ? peer_generation_ : kNobodysGeneration,
                                static_cast<uint8_t>(FragmentType::data),
                                {}};
    std::memcpy(at, &header, sizeof header);
    connection()->orb().commit(position, payload);
    end = position + fragment_size(payload);
    if (!whole) [[unlikely]] {
      connection()->kick();
      break;
    }
    sent += payload;
    done += payload;
    tx_engine_.store(sent, std::memory_order_relaxed);
    if (done - posted < connection()->post_batch()) continue;
    connection()->kick();
    posted = done;
  }
  if (done != posted) connection()->kick();
  connection()->wait_until_posted(end);
  return done;
}

void Stream::wait_for_move_locked() noexcept {
  if (connection() != nullptr) connection()->wait_until_posted(moved_down_at_);
  moved_down_at_ = 0;
}

bool Stream::can_send_engine() noexcept {
  if (tx_room(tx_engine() + held_size_.load(std::memory_order_relaxed)) == 0) return false;
  const SendSideGuard guard(*this);  // for the connection
  return connection() != nullptr && connection()->has_room();
}

bool Stream::can_send_or_wants_space() noexcept {
  if (can_send_engine()) return true;
  bool full = false;
  {
    const SendSideGuard guard(*this);
    // Credit arrives as a fragment; the connection reports room only to those who ask.
    full = connection() != nullptr && !connection()->has_room();
    if (full) connection()->want_space();
  }
  return full && can_send_engine();
}

bool Stream::send_control(FragmentType type, const void* payload, uint32_t length) noexcept {
  return connection()->send_control(peer_stream_, peer_generation_, type, payload, length);
}

bool Stream::send_value(FragmentType type, uint64_t value) noexcept {
  return send_control(type, &value, sizeof value);
}

uint32_t Stream::run_sending_locked(uint32_t bits) noexcept {
  if (connection() == nullptr) return 0;  // it has started over
  if ((bits & kClose) != 0) {
    bits &= ~kClose;
    if (!tx_fin_ && (bits & kReset) == 0 && !reset_sent_.load(std::memory_order_relaxed)) {
      // A fin would end the stream itself, which another process may go on with on the kernel.
      lets_go_ = phase() == Phase::kernel;
      tx_fin_ = true;
      bits |= kFin;
    }
  }
  if (is_dead()) {
    fin_sent_.store(true, std::memory_order_release);
    shut_anchor_in_time_locked();
    return 0;
  }
  if (connection()->is_dead()) return run_stranded_locked(bits);
  if ((bits & (kReplay | kReset)) == kReplay) {
    if (!flush_replay_locked()) return bits;
    if (stay_down_.load(std::memory_order_relaxed)) defer(kSettle);
    signal(kWritable);
    bits &= ~kReplay;
  }
  if ((bits & kCheckAnchor) != 0) {
    bits &= ~kCheckAnchor;
    // An end is counted as a byte.
    const uint64_t own = tx_kernel() + (tx_fin_ && !shuts_anchor_ ? 1 : 0);
    const uint64_t excess =
        tx_carrier() == Carrier::engine ? tcp_excess(anchor(), accepted_, own).value_or(0) : 0;
    if (excess != 0) {
      // Nobody knows where these bytes belong among those that the engine carries.
      log(LogLevel::error, "stream %s: %llu bytes were sent past the shim; the stream is lost",
          to_string(tuple_.local).c_str(), static_cast<unsigned long long>(excess));
      sent_past_shim_ = true;
      bits |= kReset;
    }
  }
  // Loaded once: a go that comes meanwhile asks for this step again, and must not be answered as an
  // unwanted one. relaxed: the thread that sets it adds the bit afterwards.
  const bool has_go = go_.load(std::memory_order_relaxed);
  if ((bits & kSwitchUp) != 0 && has_go && tx_carrier() == Carrier::kernel && !tx_fin_ &&
      !tx_used_.load(std::memory_order_relaxed) && !stay_down_.load(std::memory_order_relaxed))
    bits &= ~kSwitchUp;  // use() asks for it again
  if ((bits & kSwitchUp) != 0) {
    // If the TCP connection is no more, and the program has not met its end yet, it is not the one
    // that the peer means.
    const auto can_send = [this] {
      const TcpState state = tcp_state(anchor());
      return state == TcpState::established || state == TcpState::close_wait;
    };
    const bool wanted = has_go && tx_carrier() == Carrier::kernel && !tx_fin_ &&
                        !stay_down_.load(std::memory_order_relaxed) && can_send();
    if (wanted && tcp_excess(anchor(), accepted_, tx_kernel()).value_or(0) != 0) {
      set_reason(Reason::sent_past_shim);
      stay_down_.store(true, std::memory_order_relaxed);
      for_good_.store(true, std::memory_order_relaxed);
      log(LogLevel::info, "stream %s: the kernel counts other bytes than the shim; it stays there",
          to_string(tuple_.local).c_str());
      bits |= kSwitchDown;
      defer(kAskDown);
    } else if (wanted) {
      // Both are set before the switch_up is sent: the answers may be here before the call returns.
      go_.store(false, std::memory_order_relaxed);
      tx_acked_.store(false, std::memory_order_relaxed);
      if (!send_value(FragmentType::switch_up, tx_kernel())) {
        go_.store(true, std::memory_order_relaxed);
        tx_acked_.store(true, std::memory_order_relaxed);
        return bits;
      }
      tx_carrier_.store(Carrier::engine, std::memory_order_relaxed);
      look_at_cork_locked();
      services_->count_switch_up(*this);
      signal(kWritable);
    } else if (tx_fin_ && !fin_marked_) {
      bits |= kFin;  // the direction ended on the kernel before the streams were joined
    } else if (has_go && tx_carrier() == Carrier::kernel) {
      // This side stays down. It must answer the go all the same, or the peer's door stays open for
      // a sender that never comes, and the peer's stream never settles on the kernel.
      bits |= kSwitchDown;
    }
    bits &= ~kSwitchUp;
  }
  // No bytes that the kernel could carry come behind the end, and the end may have to be taken
  // back.
  if (keeps_anchor_open_locked() && !stay_down_.load(std::memory_order_relaxed))
    bits &= ~kSwitchDown;
  if ((bits & kSwitchDown) != 0) {
    if (tx_carrier() == Carrier::engine && !tx_acked_.load(std::memory_order_acquire))
      return bits;  // tried again when the ack arrives
    if (tx_fin_ && !flush_held_locked()) return bits;
    // The fragment that takes the end back comes behind the end.
    if (tx_fin_ && keeps_anchor_open_locked() && !fin_marked_ && !mark_end_locked()) return bits;
    // A second answer to a go could cross the next go, and the peer would take it for the answer to
    // that one. The go is taken before the answer is sent: another go may be here before the call
    // returns.
    const bool takes_go = go_.exchange(false, std::memory_order_relaxed);
    const bool hold_wanted = hold_wanted_.load(std::memory_order_relaxed);
    const bool answers = tx_fin_ ? hold_wanted && fin_marked_ && keeps_anchor_open_locked()
                                 : takes_go || tx_carrier() == Carrier::engine || hold_wanted;
    if (answers && !send_switch_down_locked()) {
      if (takes_go) go_.store(true, std::memory_order_relaxed);
      return bits;
    }
    if (tx_fin_ && awaits_hand_back()) {
      fin_sent_.store(false, std::memory_order_relaxed);  // the end is behind what comes back
      bits |= kFin;
    }
    if (tx_carrier() == Carrier::engine) {
      tx_carrier_.store(Carrier::kernel, std::memory_order_relaxed);
      moved_down_at_ = connection()->orb().back();
      take_held_down_locked();
      services_->count_switch_down(*this);
    }
    if (stay_down_.load(std::memory_order_relaxed)) defer(kSettle);
    signal(kWritable);
    bits &= ~kSwitchDown;
  }
  if ((bits & kRelease) != 0) {
    if (now_ns() >= release_at_) flush_held_locked();
    if (held_.empty()) bits &= ~kRelease;
  }
  if ((bits & kFin) != 0) {
    if (!mark_end_locked()) return bits;
    bits &= ~kFin;
  }
  if ((bits & kReset) != 0) {
    if (!send_control(FragmentType::reset, nullptr, 0)) return bits;
    held_.clear();
    held_changed_locked();
    reset_sent_.store(true, std::memory_order_relaxed);
    fin_sent_.store(true, std::memory_order_release);
    bits &= ~kReset;
    if (sent_past_shim_) {
      is_lost_.store(true, std::memory_order_relaxed);
      services_->retry_later(*this);
    }
  }
  shut_anchor_in_time_locked();
  return bits & ~kShut;
}

// ---- receiving side

RxHead Stream::error_or_end(const Segment& mark) const noexcept {
  // The error is reported once, then end of file, as the kernel does after a reset.
  if (mark.value == 0 || was_error_told()) return {RxHead::Kind::end, false, 0, 0, nullptr};
  return {RxHead::Kind::error, false, static_cast<int>(mark.value), 0, nullptr};
}

void Stream::take_switch_down_locked() noexcept {
  const bool may_be_held = queue_.front()->value != 0;
  queue_.pop();
  close_door_locked();
  // Only at the mark of the hold is nothing unread left that could be handed back; other marks may
  // have come before it.
  if (may_be_held) answer_hold();
}

RxHead Stream::rx_head_locked() noexcept {
  for (;;) {
    Segment* segment = queue_.front();
    if (rx_carrier() == Carrier::kernel) {
      if (segment != nullptr && segment->kind == SegmentKind::switch_up) {
        if (segment->value == rx_kernel()) {
          rx_carrier_.store(Carrier::engine, std::memory_order_relaxed);
          queue_.pop();
          defer(kQuestionAnchor);
          continue;
        }
        if (segment->value < rx_kernel()) {
          log(LogLevel::error, "stream %s: more bytes came over the kernel than were sent there",
              to_string(tuple_.local).c_str());
          return {RxHead::Kind::error, false, ECONNRESET, 0, nullptr};
        }
        return {RxHead::Kind::kernel, true, 0, segment->value - rx_kernel(), nullptr};
      }
      if (segment != nullptr && door_is_open() &&
          (segment->kind == SegmentKind::fin || segment->kind == SegmentKind::error)) {
        // The direction ended on the kernel: nothing will come through the door.
        rx_door_.store(false, std::memory_order_release);
        if (stay_down_.load(std::memory_order_relaxed)) defer(kSettle);
      }
      if (segment != nullptr && is_detached()) return error_or_end(*segment);  // torn
      if (segment != nullptr && segment->kind == SegmentKind::switch_down) {
        take_switch_down_locked();  // the answer to ask_down of a sender that was not on the engine
        continue;
      }
      return {RxHead::Kind::kernel, false, 0, 0, nullptr};
    }
    if (segment == nullptr) return {RxHead::Kind::empty, false, 0, 0, nullptr};
    switch (segment->kind) {
      case SegmentKind::data:
        return {RxHead::Kind::data, false, 0, segment->length, segment->data};
      case SegmentKind::switch_down:
        rx_carrier_.store(Carrier::kernel, std::memory_order_relaxed);
        take_switch_down_locked();
        continue;
      case SegmentKind::fin:
        if (end_came_back_) {
          queue_.pop();
          continue;
        }
        return {RxHead::Kind::end, false, 0, 0, nullptr};
      case SegmentKind::error:
        return error_or_end(*segment);
      case SegmentKind::switch_up:
        queue_.pop();
        continue;
    }
  }
}

uint64_t Stream::kernel_bytes_before_locked(bool& moved_down) noexcept {
  uint64_t before = 0;
  moved_down = rx_carrier() == Carrier::kernel;
  queue_.for_each([&](Segment& segment) {
    if (segment.kind == SegmentKind::switch_up) {
      before = segment.value - std::min(segment.value, rx_kernel());
      moved_down = false;
    } else if (segment.kind == SegmentKind::switch_down) {
      moved_down = true;
    }
    return true;
  });
  return before;
}

void Stream::clear_error_locked() noexcept {
  Segment* segment = queue_.front();
  if (segment != nullptr && segment->kind == SegmentKind::error) segment->value = 0;
}

void Stream::close_door_locked() noexcept {
  rx_door_.store(false, std::memory_order_release);
  defer(stay_down_.load(std::memory_order_relaxed) ? kSettle : kGo);
}

void Stream::give_credit_locked() noexcept {
  // On failure (ring full) the credit is deferred, and whoever finds room sends it.
  const uint32_t left = run_receiving_locked(kCredit);
  if (left != 0) defer(left);
}

uint32_t Stream::run_receiving_locked(uint32_t bits) noexcept {
  if (is_dead() || connection() == nullptr) return 0;
  if (connection()->is_dead()) bits &= kSettle;  // there is nobody to tell the rest to
  if ((bits & kGo) != 0 && !rx_used_.load(std::memory_order_relaxed)) {
    if (accepted_ && !told_join_) {
      const GoPayload payload{id_, generation_, 0, 0};
      if (!send_control(FragmentType::join, &payload, sizeof payload)) return bits;
      told_join_ = true;
    }
    bits &= ~kGo;  // use() asks for it again
  }
  if ((bits & kGo) != 0) {
    if (rx_carrier() == Carrier::kernel && !door_is_open() && invites_ &&
        !stay_down_.load(std::memory_order_relaxed)) {
      const uint64_t credit = rx_engine_.load(std::memory_order_relaxed) + window_;
      rx_credit_.store(credit, std::memory_order_relaxed);
      const GoPayload payload{id_, generation_, credit, window_};
      rx_goes_.fetch_add(1, std::memory_order_release);
      // The door opens before the go is sent: the peer's bytes may be here right after that, and a
      // thread that looks for them checks the door before it takes the lock that is held here.
      // Pairs with door_is_open().
      rx_door_.store(true, std::memory_order_release);
      if (!send_control(FragmentType::go, &payload, sizeof payload)) {
        rx_door_.store(false, std::memory_order_release);
        rx_goes_.fetch_sub(1, std::memory_order_release);
        return bits;
      }
      put_low_water_locked(1);
    }
    bits &= ~kGo;
  }
  // How a settled stream is read is the kernel's own business.
  if (!is_bound()) bits &= ~(kBuffers | kLimit);
  if ((bits & kBuffers) != 0) {
    // Sent behind the fragment that has bound the peer's stream.
    if (!tell_buffers_locked()) return bits;
    bits = (bits & ~kBuffers) | kLimit;
  }
  if ((bits & kLimit) != 0) {
    bits &= ~kLimit;
    if (set_limits_locked()) bits |= kCredit;
  }
  if ((bits & kSwitchAck) != 0) {
    // The caller holds the lock, so no reader is between reading the queue and reading the anchor.
    if (!send_control(FragmentType::switch_ack, nullptr, 0)) return bits;
    bits &= ~kSwitchAck;
  }
  if ((bits & kQuestionAnchor) != 0) {
    // Until the reader has come to the move, there may be bytes from before it. The reader asks
    // when it gets there.
    int queued = 0;
    if (rx_carrier() == Carrier::engine && sys::ioctl(anchor(), SIOCINQ, &queued) == 0 &&
        queued != 0 && !send_control(FragmentType::check_anchor, nullptr, 0))
      return bits;
    bits &= ~kQuestionAnchor;
  }
  if ((bits & kCredit) != 0) {
    const uint64_t credit = rx_engine_.load(std::memory_order_relaxed) + window_;
    const uint64_t before = rx_credit_.exchange(credit, std::memory_order_relaxed);
    if (credit != before && !send_value(FragmentType::credit, credit)) {
      rx_credit_.store(before, std::memory_order_relaxed);
      return bits;
    }
    services_->counters().credit_updates.add();
    bits &= ~kCredit;
  }
  if ((bits & kAskDown) != 0) {
    const bool hold = wants_hold_.load(std::memory_order_relaxed) && !asked_hold_;
    const uint64_t what =
        (stay_down_.load(std::memory_order_relaxed) ? kAskForGood : 0) | (hold ? kAskHold : 0);
    if (!send_value(FragmentType::ask_down, what)) return bits;
    asked_hold_ = asked_hold_ || hold;
    bits &= ~kAskDown;
  }
  if ((bits & kEndHold) != 0) {
    if (peer_holds_.load(std::memory_order_relaxed)) {
      if (!send_value(FragmentType::handed_back_end, 0)) return bits;
      peer_holds_.store(false, std::memory_order_relaxed);
    }
    bits &= ~kEndHold;
  }
  if ((bits & kEndTaken) != 0) {
    tells_end_ = rx_queued() != 0;  // consume_locked() asks again
    if (!tells_end_ && !send_control(FragmentType::end_taken, nullptr, 0)) return bits;
    bits &= ~kEndTaken;
  }
  if ((bits & kSettle) != 0) {
    // Takes the marks that need no reader. A mark that crossed a go may have closed the door with a
    // switch up behind it. The event that completes it asks again.
    RxHead head = rx_head_locked();
    if (head.kind == RxHead::Kind::end && leave_end_to_anchor_locked()) head = rx_head_locked();
    if (head.kind != RxHead::Kind::kernel || head.switch_pending || !is_down_locked())
      return bits & ~kSettle;
    put_low_water_locked(low_water());
    end_keep_alive_locked();
    set_phase(Phase::kernel);
    signal(kMoved | kReadable | kWritable);
    bits &= ~kSettle;
  }
  return bits;
}

std::atomic<std::optional<bool> (*)() noexcept> Stream::may_wait_unseen{nullptr};
std::atomic<bool> Stream::waits_unseen{false};

bool Stream::may_be_used() const noexcept {
  return cleared_.load(std::memory_order_seq_cst) &&
         (seen_waiting_.load(std::memory_order_seq_cst) ||
          !waits_unseen.load(std::memory_order_seq_cst));
}

void Stream::ask_for_clearance() noexcept {
  // seq_cst: use() has set what is wanted before this, and bind() has set the phase. One of the two
  // gets here with both set.
  if (phase_.load(std::memory_order_seq_cst) == Phase::undecided ||
      clearance_asked_.exchange(true, std::memory_order_seq_cst))
    return;
  services_->look_for_waiters(*this);
}

void Stream::clear() noexcept {
  // seq_cst: either use() sees this store, or this function sees what use() wanted.
  cleared_.store(true, std::memory_order_seq_cst);
  const uint32_t wanted = wanted_use_.load(std::memory_order_seq_cst);
  if ((wanted & kGo) != 0) use(rx_used_, kGo);
  if ((wanted & kSwitchUp) != 0) use(tx_used_, kSwitchUp);
}

void Stream::use(std::atomic<bool>& used, uint32_t what) noexcept {
  if (!may_be_used()) {
    wanted_use_.fetch_or(what, std::memory_order_seq_cst);
    if (may_wait_unseen.load(std::memory_order_acquire) == nullptr)
      cleared_.store(true, std::memory_order_seq_cst);
    if (!may_be_used()) return ask_for_clearance();
  }
  used.store(true, std::memory_order_seq_cst);
  // As long as nobody has joined the stream, nothing waits. bind() sets the phase and looks at
  // `used` behind a full barrier: one of the two sees the other.
  if (phase_.load(std::memory_order_seq_cst) == Phase::undecided) return;
  // The readiness of an unused stream was the kernel's alone, and no longer is.
  signal(kMoved | kReadable | kWritable);
  defer(what);
  run_deferred();
}

// ---- what is left for others

void Stream::defer(uint32_t what) noexcept {
  deferred_.fetch_or(what, std::memory_order_seq_cst);
  services_->retry_later(*this);
}

bool Stream::run_deferred() noexcept {
  // The phase comes first: its acquire makes visible what bind() has set.
  if (phase() == Phase::undecided || connection() == nullptr) return true;
  const auto run = [this](Mutex& lock, uint32_t side, auto&& body) {
    // Whoever adds a bit and finds the lock held leaves it to the holder, who looks again after
    // unlock().
    while ((deferred_.load(std::memory_order_seq_cst) & side) != 0 && lock.try_lock()) {
      const bool acked = tx_acked_.load(std::memory_order_relaxed);
      const uint32_t bits = deferred_.fetch_and(~side, std::memory_order_acq_rel) & side;
      const uint32_t left = body(bits);
      if (left != 0) deferred_.fetch_or(left, std::memory_order_seq_cst);
      lock.unlock();
      if (left == 0) continue;
      services_->retry_later(*this);
      // The awaited ack may have come while nobody could see the bit.
      if (acked || !tx_acked_.load(std::memory_order_seq_cst)) return;
    }
  };
  run(send_lock_, kSending, [this](uint32_t bits) { return run_sending_locked(bits); });
  run(recv_lock_, kReceiving, [this](uint32_t bits) { return run_receiving_locked(bits); });
  return deferred_.load(std::memory_order_relaxed) == 0;
}

}  // namespace sidestep::engine

#include "engine/stream/sender.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/tcp_counts.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

size_t Sender::send_locked(const iovec* vector, int count, size_t offset, size_t length) noexcept {
  Connection& connection = *stream_.connection();
  size_t done = 0;
  size_t posted = 0;
  uint64_t end = 0;
  uint64_t sent = engine_.load(std::memory_order_relaxed);
  while (done < length) {
    const uint64_t credit = room_behind(sent);
    if (credit == 0) {
      stream_.services_->counters().credit_stalls.add();
      break;
    }
    const auto payload = static_cast<uint32_t>(
        std::min({uint64_t{length - done}, credit, uint64_t{connection.max_payload()}}));
    const uint64_t position = connection.reserve(payload, false);
    if (position == Orb::kNoSpace) {
      stream_.services_->counters().orb_full.add();
      break;
    }
    std::byte* at = connection.orb().at(position);
    const size_t copied =
        count == 1
            ? copy_in(at + sizeof(FragmentHeader),
                      static_cast<const std::byte*>(vector->iov_base) + offset + done, payload)
            : copy_from(at + sizeof(FragmentHeader), vector, count, offset + done, payload);
    // If memory went away since the caller looked, the reserved space must be committed all the
    // same, as nobody's; otherwise the ring would end here.
    const bool whole = copied == payload;
    const FragmentHeader header{stream_.peer_stream_,
                                payload,
                                whole ? stream_.peer_generation_ : kNobodysGeneration,
                                static_cast<uint8_t>(FragmentType::data),
                                {}};
    std::memcpy(at, &header, sizeof header);
    connection.orb().commit(position, payload);
    end = position + fragment_size(payload);
    if (!whole) [[unlikely]] {
      connection.kick();
      break;
    }
    sent += payload;
    done += payload;
    engine_.store(sent, std::memory_order_relaxed);
    if (done - posted < connection.post_batch()) continue;
    connection.kick();
    posted = done;
  }
  if (done != posted) connection.kick();
  connection.wait_until_posted(end);
  return done;
}

void Sender::wait_for_move_locked() noexcept {
  if (stream_.connection() != nullptr) stream_.connection()->wait_until_posted(moved_down_at_);
  moved_down_at_ = 0;
}

bool Sender::can_send() noexcept {
  if (room_behind(engine_bytes() + held_size_.load(std::memory_order_relaxed)) == 0) return false;
  const SideGuard guard(*this);  // for the connection
  return stream_.connection() != nullptr && stream_.connection()->has_room();
}

bool Sender::can_send_or_wants_space() noexcept {
  if (can_send()) return true;
  bool full = false;
  {
    const SideGuard guard(*this);
    // Credit arrives as a fragment; the connection reports room only to those who ask.
    full = stream_.connection() != nullptr && !stream_.connection()->has_room();
    if (full) stream_.connection()->want_space();
  }
  return full && can_send();
}

uint32_t Sender::run_locked(uint32_t bits) noexcept {
  if (stream_.connection() == nullptr) return 0;  // it has started over
  if ((bits & kClose) != 0) {
    bits &= ~kClose;
    if (!ended_ && (bits & kReset) == 0 && !reset_sent_.load(std::memory_order_relaxed)) {
      // A fin would end the stream itself, which another process may go on with on the kernel.
      lets_go_ = stream_.phase() == Phase::kernel;
      ended_ = true;
      bits |= kFin;
    }
  }
  if (stream_.is_aborted()) {
    set_end_told(true);
    shut_anchor_in_time_locked();
    return 0;
  }
  if (stream_.connection()->is_closed()) return run_failover_locked(bits);
  if ((bits & (kReplay | kReset)) == kReplay) {
    if (!flush_replay_locked()) return bits;
    if (stream_.stay_down_.load(std::memory_order_relaxed))
      stream_.receiver_.defer(Receiver::kSettle);
    stream_.signal(kWritable);
    bits &= ~kReplay;
  }
  if ((bits & kCheckAnchor) != 0) {
    bits &= ~kCheckAnchor;
    // An end is counted as a byte.
    const uint64_t own = kernel_bytes() + (ended_ && !shuts_anchor_ ? 1 : 0);
    const uint64_t excess = carrier() == Carrier::engine
                                ? tcp_excess(stream_.anchor(), stream_.accepted_, own).value_or(0)
                                : 0;
    if (excess != 0) {
      // Nobody knows where these bytes belong among those that the engine carries.
      log(LogLevel::error, "stream %s: %llu bytes were sent past the shim; the stream is lost",
          text_of(stream_.tuple_.local).c_str(), static_cast<unsigned long long>(excess));
      sent_past_shim_ = true;
      bits |= kReset;
    }
  }
  // Loaded once: a receive_ready that comes meanwhile asks for this step again. It must not be
  // answered as an unwanted one. relaxed: the thread that sets it adds the bit afterwards.
  const bool is_peer_ready = peer_ready_.load(std::memory_order_relaxed);
  if ((bits & kSwitchUp) != 0 && is_peer_ready && carrier() == Carrier::kernel && !ended_ &&
      !used_.load(std::memory_order_relaxed) && !stream_.stay_down_.load(std::memory_order_relaxed))
    bits &= ~kSwitchUp;  // begin_use() asks for it again
  if ((bits & kSwitchUp) != 0) {
    // If the TCP connection is no more, although the program has not met its end yet, the peer
    // means another one.
    const auto can_send = [this] {
      const TcpState state = tcp_state(stream_.anchor());
      return state == TcpState::established || state == TcpState::close_wait;
    };
    const bool wanted = is_peer_ready && carrier() == Carrier::kernel && !ended_ &&
                        (bits & kReset) == 0 &&
                        !stream_.stay_down_.load(std::memory_order_relaxed) && can_send();
    // Bytes that come back, or are sent again, go over the anchor first, and count there.
    if (wanted && has_replay()) return bits;
    if (wanted &&
        tcp_excess(stream_.anchor(), stream_.accepted_, kernel_bytes()).value_or(0) != 0) {
      stream_.set_reason(Reason::sent_past_shim);
      stream_.stay_down_.store(true, std::memory_order_relaxed);
      stream_.for_good_.store(true, std::memory_order_relaxed);
      log(LogLevel::info,
          "stream %s stays on the kernel, which has sent bytes that the shim has not seen",
          text_of(stream_.tuple_.local).c_str());
      bits |= kSwitchDown;
      stream_.receiver_.defer(Receiver::kAskDown);
    } else if (wanted) {
      // Both are set before the switch_up is sent: the answers may be here before the call returns.
      peer_ready_.store(false, std::memory_order_relaxed);
      enter(SenderState::announcing);
      if (!stream_.send_value(FragmentType::switch_up, kernel_bytes())) {
        peer_ready_.store(true, std::memory_order_relaxed);
        enter(SenderState::kernel);
        return bits;
      }
      SenderState announcing = SenderState::announcing;
      // seq_cst, as in enter(). If it fails, the answer is here already.
      state_.compare_exchange_strong(announcing, SenderState::rising, std::memory_order_seq_cst);
      look_at_cork_locked();
      stream_.services_->count_switch_up(stream_);
      stream_.signal(kWritable);
    } else if (ended_ && !has_sent_mark()) {
      bits |= kFin;  // the direction ended on the kernel before the streams were joined
    } else if (is_peer_ready && carrier() == Carrier::kernel) {
      // This side stays down. It must answer all the same, or the peer's reads wait for
      // a sender that never comes, and the peer's stream never settles on the kernel.
      bits |= kSwitchDown;
    }
    bits &= ~kSwitchUp;
  }
  // No bytes that the kernel could carry come behind the end, and the end may have to be taken
  // back.
  if (keeps_anchor_open_locked() && !stream_.stay_down_.load(std::memory_order_relaxed))
    bits &= ~kSwitchDown;
  if ((bits & kSwitchDown) != 0) {
    const bool was_up = carrier() == Carrier::engine;
    if (awaits_ack(state_.load(std::memory_order_acquire)))
      return bits;  // tried again when the ack arrives
    if (ended_ && !flush_held_locked()) return bits;
    // The fragment that takes the end back comes behind the end.
    if (ended_ && keeps_anchor_open_locked() && !has_sent_mark() && !mark_end_locked()) return bits;
    // A second answer to a receive_ready could cross the next one, and the peer would take it for
    // the answer to that. It is taken before the answer is sent: another may be here before the
    // call returns.
    const bool takes_ready = peer_ready_.exchange(false, std::memory_order_relaxed);
    const bool hold_wanted = hold_wanted_.load(std::memory_order_relaxed);
    const bool answers = ended_ ? hold_wanted && has_sent_mark() && keeps_anchor_open_locked()
                                : takes_ready || was_up || hold_wanted;
    if (answers && !send_switch_down_locked()) {
      if (takes_ready) peer_ready_.store(true, std::memory_order_relaxed);
      return bits;
    }
    if (ended_ && awaits_return()) {
      set_end_told(false);  // the end is behind what comes back
      bits |= kFin;
    }
    if (was_up) {
      enter(awaits_return() ? SenderState::holding : SenderState::kernel);
      moved_down_at_ = stream_.connection()->orb().back();
      take_held_down_locked();
      stream_.services_->count_switch_down(stream_);
    }
    if (stream_.stay_down_.load(std::memory_order_relaxed))
      stream_.receiver_.defer(Receiver::kSettle);
    stream_.signal(kWritable);
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
    if (!stream_.send_control(FragmentType::reset, nullptr, 0)) return bits;
    held_.clear();
    held_changed_locked();
    reset_sent_.store(true, std::memory_order_relaxed);
    set_end_told(true);
    bits &= ~kReset;
    if (sent_past_shim_) {
      is_lost_.store(true, std::memory_order_relaxed);
      stream_.services_->retry_later(stream_);
    }
  }
  shut_anchor_in_time_locked();
  return bits & ~kShut;
}

void Sender::begin_use() noexcept {
  if (!stream_.clearance().admits(Clearance::Use::writing)) return;
  used_.store(true, std::memory_order_seq_cst);
  // As long as nobody has joined the stream, nothing waits. bind() sets the phase and looks at
  // `used_` behind a full barrier: one of the two sees the other.
  if (!stream_.is_decided()) return;
  // The readiness of an unused stream was the kernel's alone, and no longer is.
  stream_.signal(kMoved | kReadable | kWritable);
  defer(kSwitchUp);
  run_deferred();
}

// ---- states, and what is left for others

void Sender::enter(SenderState to) noexcept {
  // seq_cst: unread_return.cpp says why.
  [[maybe_unused]] const SenderState from = state_.exchange(to, std::memory_order_seq_cst);
  assert(may_follow(from, to));
}

void Sender::on_ack() noexcept {
  // An acknowledgement that nobody waits for means nothing. seq_cst: the bits that wait for it are
  // looked at afterwards, by run_own_deferred().
  for (SenderState from = state(); awaits_ack(from);)
    if (state_.compare_exchange_weak(from, SenderState::engine, std::memory_order_seq_cst)) break;
  stream_.run_deferred();  // a move down may have waited for this
}

bool Sender::run_own_deferred() noexcept {
  bool awaited_ack = false;
  const auto run = [&](uint32_t bits) {
    awaited_ack = awaits_ack(state());
    return run_locked(bits);
  };
  // The awaited ack may have come while nobody could see the bit.
  const auto tries_again = [&] {
    return awaited_ack && !awaits_ack(state_.load(std::memory_order_seq_cst));
  };
  return Direction::run_own_deferred(run, tries_again);
}

}  // namespace sidestep::engine

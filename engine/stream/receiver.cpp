#include "engine/stream/receiver.hpp"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

RxHead Receiver::error_or_end(const Segment& mark) const noexcept {
  // The error is reported once, then end of file, as the kernel does after a reset.
  if (mark.value == 0 || stream_.errors_.was_told())
    return {RxHead::Kind::end, false, 0, 0, nullptr};
  return {RxHead::Kind::error, false, static_cast<int>(mark.value), 0, nullptr};
}

void Receiver::take_switch_down_locked() noexcept {
  const bool may_be_held = queue_.front()->value != 0;
  queue_.pop();
  end_readiness_locked();
  // Only at the mark of the hold is nothing unread left that could be returned; other marks may
  // have come before it.
  if (may_be_held) answer_hold();
}

RxHead Receiver::head_locked() noexcept {
  for (;;) {
    Segment* segment = queue_.front();
    if (carrier() == Carrier::kernel) {
      if (segment != nullptr && segment->kind == SegmentKind::switch_up) {
        if (segment->value == kernel_bytes()) {
          enter(ReceiverState::engine);
          queue_.pop();
          defer(kQuestionAnchor);
          continue;
        }
        if (segment->value < kernel_bytes()) {
          log(LogLevel::error, "stream %s: more bytes came over the kernel than were sent there",
              text_of(stream_.tuple_.local).c_str());
          return {RxHead::Kind::error, false, ECONNRESET, 0, nullptr};
        }
        return {RxHead::Kind::kernel, true, 0, segment->value - kernel_bytes(), nullptr};
      }
      if (segment != nullptr && is_receive_ready() &&
          (segment->kind == SegmentKind::fin || segment->kind == SegmentKind::error)) {
        // The direction ended on the kernel: nothing will come over the engine.
        enter(ReceiverState::kernel);
        if (stream_.stay_down_.load(std::memory_order_relaxed)) defer(kSettle);
      }
      if (segment != nullptr && stream_.is_detached()) return error_or_end(*segment);  // torn
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

uint64_t Receiver::kernel_bytes_before_locked(bool& moved_down) noexcept {
  uint64_t before = 0;
  moved_down = carrier() == Carrier::kernel;
  queue_.for_each([&](Segment& segment) {
    if (segment.kind == SegmentKind::switch_up) {
      before = segment.value - std::min(segment.value, kernel_bytes());
      moved_down = false;
    } else if (segment.kind == SegmentKind::switch_down) {
      moved_down = true;
    }
    return true;
  });
  return before;
}

void Receiver::clear_error_locked() noexcept {
  Segment* segment = queue_.front();
  if (segment != nullptr && segment->kind == SegmentKind::error) segment->value = 0;
}

void Receiver::end_readiness_locked() noexcept {
  enter(ReceiverState::kernel);
  defer(stream_.stay_down_.load(std::memory_order_relaxed) ? kSettle : kGo);
}

void Receiver::give_credit_locked() noexcept {
  // On failure (ring full) the credit is deferred, and whoever finds room sends it.
  const uint32_t left = run_locked(kCredit);
  if (left != 0) defer(left);
}

uint32_t Receiver::run_locked(uint32_t bits) noexcept {
  if (stream_.is_aborted() || stream_.connection() == nullptr) return 0;
  if (stream_.connection()->is_closed()) bits &= kSettle;  // there is nobody to tell the rest to
  if ((bits & kGo) != 0 && !used_.load(std::memory_order_relaxed)) {
    if (stream_.accepted_ && !told_join_) {
      const ReceiveReadyPayload payload{stream_.id_, stream_.generation_, 0, 0};
      if (!stream_.send_control(FragmentType::join, &payload, sizeof payload)) return bits;
      told_join_ = true;
    }
    bits &= ~kGo;  // begin_use() asks for it again
  }
  if ((bits & kGo) != 0) {
    if (carrier() == Carrier::kernel && !is_receive_ready() && may_be_ready_ &&
        !stream_.stay_down_.load(std::memory_order_relaxed)) {
      const uint64_t credit = engine_.load(std::memory_order_relaxed) + window_;
      credit_.store(credit, std::memory_order_relaxed);
      const ReceiveReadyPayload payload{stream_.id_, stream_.generation_, credit, window_};
      goes_.fetch_add(1, std::memory_order_release);
      // Entered before it is sent: the peer's bytes may be here right after that, and a thread
      // that looks for them asks is_receive_ready(), which pairs with this, before it takes the
      // lock that is held here.
      enter(ReceiverState::ready);
      if (!stream_.send_control(FragmentType::receive_ready, &payload, sizeof payload)) {
        enter(ReceiverState::kernel);
        goes_.fetch_sub(1, std::memory_order_release);
        return bits;
      }
      put_low_water_locked(1);
    }
    bits &= ~kGo;
  }
  // How a settled stream is read is the kernel's own business.
  if (!stream_.is_bound()) bits &= ~(kBuffers | kLimit);
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
    if (!stream_.send_control(FragmentType::switch_ack, nullptr, 0)) return bits;
    bits &= ~kSwitchAck;
  }
  if ((bits & kQuestionAnchor) != 0) {
    // Until the reader has come to the move, there may be bytes from before it. The reader asks
    // when it gets there.
    int queued = 0;
    if (carrier() == Carrier::engine && sys::ioctl(stream_.anchor(), SIOCINQ, &queued) == 0 &&
        queued != 0 && !stream_.send_control(FragmentType::check_anchor, nullptr, 0))
      return bits;
    bits &= ~kQuestionAnchor;
  }
  if ((bits & kCredit) != 0) {
    const uint64_t credit = engine_.load(std::memory_order_relaxed) + window_;
    const uint64_t before = credit_.exchange(credit, std::memory_order_relaxed);
    if (credit != before && !stream_.send_value(FragmentType::credit, credit)) {
      credit_.store(before, std::memory_order_relaxed);
      return bits;
    }
    stream_.services_->counters().credit_updates.add();
    bits &= ~kCredit;
  }
  if ((bits & kAskDown) != 0) {
    const bool hold = wants_hold_.load(std::memory_order_relaxed) && !asked_hold_;
    const uint64_t what = (stream_.stay_down_.load(std::memory_order_relaxed) ? kAskForGood : 0) |
                          (hold ? kAskHold : 0);
    if (!stream_.send_value(FragmentType::ask_down, what)) return bits;
    asked_hold_ = asked_hold_ || hold;
    bits &= ~kAskDown;
  }
  if ((bits & kEndHold) != 0) {
    if (peer_holds_.load(std::memory_order_relaxed)) {
      if (!stream_.send_value(FragmentType::returned_end, 0)) return bits;
      peer_holds_.store(false, std::memory_order_relaxed);
    }
    bits &= ~kEndHold;
  }
  if ((bits & kEndTaken) != 0) {
    tells_end_ = queued() != 0;  // consume_locked() asks again
    if (!tells_end_ && !stream_.send_control(FragmentType::end_taken, nullptr, 0)) return bits;
    bits &= ~kEndTaken;
  }
  if ((bits & kSettle) != 0) {
    // Takes the marks that need no reader. A mark that crossed a receive_ready may have ended it
    // with a switch up behind it. The event that completes it asks again.
    RxHead head = head_locked();
    if (head.kind == RxHead::Kind::end && leave_end_to_anchor_locked()) head = head_locked();
    if (head.kind != RxHead::Kind::kernel || head.switch_pending || !stream_.is_down_locked())
      return bits & ~kSettle;
    put_low_water_locked(low_water());
    stream_.keep_alive_.end_locked();
    stream_.set_phase(Phase::kernel);
    stream_.signal(kMoved | kReadable | kWritable);
    bits &= ~kSettle;
  }
  return bits;
}

bool Receiver::doubts_end() const noexcept {
  // acquire: a thread that sees the stream dead sees its error.
  return stream_.is_bound() && !stream_.aborted_.load(std::memory_order_acquire) &&
         is_receive_ready() && !peer_fin_ && !end_believed_.load(std::memory_order_relaxed) &&
         !stream_.connection()->endpoint().is_ordered();
}

bool Receiver::end_is_lost() const noexcept {
  if (!stream_.is_aborted() || peer_has_finished()) return false;
  const int error = stream_.errors_.pending();
  return error != 0 && error != EPIPE;
}

void Receiver::begin_use() noexcept {
  if (!stream_.clearance().admits(Clearance::Use::reading)) return;
  used_.store(true, std::memory_order_seq_cst);
  if (!stream_.is_decided()) return;  // as in Sender::begin_use()
  stream_.signal(kMoved | kReadable | kWritable);
  defer(kGo);
  run_deferred();
}

// ---- states, and what is left for others

void Receiver::enter(ReceiverState to) noexcept {
  assert(may_follow(state(), to));
  state_.store(to, std::memory_order_release);  // pairs with state()
}

bool Receiver::run_own_deferred() noexcept {
  return Direction::run_own_deferred([this](uint32_t bits) { return run_locked(bits); },
                                     [] { return false; });
}

}  // namespace sidestep::engine

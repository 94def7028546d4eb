// How a direction ends.
//
//   S: fin         after the last byte, whichever carrier the direction is on
//   R: end_taken   everything that was sent over the engine has been read
//   S: ends the anchor's direction
//
// Within a host the anchor stays open until then, because R may have to return what it has not
// read (unread_return.cpp), and those bytes come over the anchor before the end. S then sends a
// switch_hold behind its fin, which takes the fin back. Anything else that brings the direction
// down, or S's close(), ends the anchor at once.
//
// A direction that R is asked to leave to the kernel ends there: as soon as the anchor has got the
// end as well, R takes that end for the direction's.
#include <sys/socket.h>

#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

// ---- the side that has sent

bool Sender::finish_locked() noexcept {
  if (ended_) return has_told_end();
  ended_ = true;
  if (stream_.connection() == nullptr || stream_.is_aborted() || (failed_over_ && !has_replay())) {
    set_end_told(true);
    return true;
  }
  if (mark_end_locked()) return true;
  defer(kFin);
  return false;
}

bool Sender::mark_end_locked() noexcept {
  if (has_replay() || !flush_held_locked()) return false;  // the end comes behind these bytes
  if (!has_sent_mark()) {
    const auto type = lets_go_ ? FragmentType::closed : FragmentType::fin;
    if (!stream_.send_value(type, engine_.load(std::memory_order_relaxed))) return false;
    end_mark_.store(EndMark::sent, std::memory_order_relaxed);
    // This position is not before the mark, which is all that matters.
    end_position_ = stream_.connection()->orb().back();
  }
  // An anchor that ends before the peer can find what moved the stream up looks like the end of the
  // stream. Another thread may be in the middle of posting, or of writing what lies before the mark
  // in the ring. Between hosts, the kernel's packets can be faster than the device's.
  constexpr int kTries = 64;  // as a rule it takes microseconds
  const Orb& orb = stream_.connection()->orb();
  for (int i = 0; i < kTries && orb.posted() < end_position_; ++i) stream_.connection()->kick();
  if (orb.posted() < end_position_) return false;
  if (!stream_.connection()->endpoint().has_arrived(end_position_)) return false;
  set_end_told(true);
  return true;
}

void Sender::set_end_told(bool told) noexcept {
  // release pairs with has_told_end().
  EndMark mark = end_mark_.load(std::memory_order_relaxed);
  while (!end_mark_.compare_exchange_weak(mark, with_told(mark, told), std::memory_order_release,
                                          std::memory_order_relaxed)) {
  }
}

bool Sender::keeps_anchor_open_locked() const noexcept {
  return shuts_anchor_ && stream_.is_bound() && stream_.shares_host() &&
         carrier() == Carrier::engine && !stream_.is_aborted() &&
         !stream_.connection()->is_closed() && !end_taken_.load(std::memory_order_relaxed);
}

bool Sender::may_shut_anchor_locked() noexcept {
  // A stream that is on the kernel for good may have to wait for what the peer returns, and the
  // end of the anchor comes behind those bytes.
  if (stream_.phase() == Phase::kernel && !has_replay()) return true;
  shuts_anchor_ = true;
  shuts_anchor_ = !has_told_end() || keeps_anchor_open_locked();
  return !shuts_anchor_;
}

void Sender::shut_anchor_in_time_locked() noexcept {
  if (!shuts_anchor_ || !has_told_end() || has_replay() || keeps_anchor_open_locked()) return;
  shuts_anchor_ = false;
  sys::shutdown(stream_.anchor(), SHUT_WR);
}

// ---- the side that reads

void Receiver::take_end_locked() noexcept {
  tells_end_ = false;
  defer(kEndTaken | (stream_.stay_down_.load(std::memory_order_relaxed) ? kSettle : 0));
}

bool Receiver::leave_end_to_anchor_locked() noexcept {
  const Segment* const segment = queue_.front();
  if (carrier() != Carrier::engine || segment == nullptr || segment->kind != SegmentKind::fin ||
      !stream_.stay_down_.load(std::memory_order_relaxed) ||
      !peer_has_ended(tcp_state(stream_.anchor())))
    return false;
  queue_.pop();
  enter(ReceiverState::kernel);
  return true;
}

}  // namespace sidestep::engine

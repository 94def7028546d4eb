#include "engine/stream/stream_input.hpp"

#include <cerrno>
#include <cstring>

#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {
namespace {

uint64_t value_of(const std::byte* payload) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, payload, sizeof value);
  return value;
}

}  // namespace

void StreamInput::lack_memory() noexcept {
  log(LogLevel::error, "out of memory: a stream is reset");
  stream_.abort(ENOBUFS);
}

bool StreamInput::admit(Connection& connection, const ReceiveReadyPayload& ready) noexcept {
  if (stream_.phase() == Phase::undecided && stream_.claim_.peer == connection.peer().number &&
      stream_.claim_.generation == ready.generation && connection.is_lane_of(stream_.tuple()) &&
      is_open(stream_.anchor_state())) {
    stream_.bind(connection, ready.stream, ready.generation);
    return true;
  }
  if (stream_.connection() == &connection && stream_.peer_stream_ == ready.stream &&
      stream_.peer_generation_ == ready.generation)
    return true;
  // Our stream belongs to another one, or has gone another way meanwhile. The peer's stream stays
  // on its anchor; the other streams of the connection have no part in this. If the ring is full,
  // the peer's stream hears nothing, and its reads go on waiting for both carriers.
  connection.send_control(ready.stream, ready.generation, FragmentType::reset, nullptr, 0);
  return false;
}

const char* StreamInput::take_control(const FragmentHeader& header, const std::byte* payload,
                                      uint32_t& events) noexcept {
  Stream& stream = stream_;
  const auto mark = [&](SegmentKind kind, uint64_t value) {
    stream.receiver_.queue_.push({nullptr, nullptr, nullptr, value, 0, kind});
    events |= kReadable;
    // The mark may be all that is missing, and perhaps nobody reads. The exchange pairs with that
    // of defer(), which comes after stay_down_ was set: one of the two finds what the other has
    // done.
    stream.receiver_.deferred_.fetch_or(0, std::memory_order_seq_cst);
    if (stream.stay_down_.load(std::memory_order_relaxed))
      stream.receiver_.defer(Receiver::kSettle);
  };
  // Marks are kept until they are read. A correct peer moves up once for each receive_ready, down
  // once, and down once more if it was asked to hold; the next one is sent when that has been read.
  // So there are never more than a few marks. A peer that sends more would fill the memory. acquire
  // pairs with the release by the thread that counts a receive_ready, before it is sent.
  const uint32_t goes = stream.receiver_.goes_.load(std::memory_order_acquire);
  const auto is_one_too_many = [&](FragmentType type) {
    if (type == FragmentType::switch_up)
      return stream.receiver_.peer_fin_ || stream.receiver_.ups_ >= goes;
    return stream.receiver_.peer_fin_ ||
           stream.receiver_.downs_.load(std::memory_order_relaxed) > goes;
  };
  switch (static_cast<FragmentType>(header.type)) {
    case FragmentType::receive_ready: {
      ReceiveReadyPayload ready;
      std::memcpy(&ready, payload, sizeof ready);
      stream.receiver_.peer_window_.store(ready.window, std::memory_order_relaxed);
      stream.sender_.credit_.store(ready.credit, std::memory_order_release);
      if (stream.receiver_.is_limited()) stream.receiver_.defer(Receiver::kLimit);
      stream.sender_.peer_ready_.store(true, std::memory_order_relaxed);
      stream.sender_.defer(Sender::kSwitchUp);
      return nullptr;
    }
    case FragmentType::join:
      return nullptr;  // admit() has bound the stream
    case FragmentType::check_anchor:
      stream.sender_.defer(Sender::kCheckAnchor);
      return nullptr;
    case FragmentType::switch_up:
      if (is_one_too_many(FragmentType::switch_up)) return "a switch up that nobody has asked for";
      ++stream.receiver_.ups_;
      stream.receiver_.engine_sends_ = true;
      mark(SegmentKind::switch_up, value_of(payload));
      stream.receiver_.defer(Receiver::kSwitchAck);
      return nullptr;
    case FragmentType::switch_ack:
      stream.sender_.on_ack();
      return nullptr;
    case FragmentType::switch_down:
      if (value_of(payload) != stream.receiver_.arrived_.load(std::memory_order_relaxed))
        return "a switch down at another byte";
      if (is_one_too_many(FragmentType::switch_down)) return "a switch down that answers nothing";
      stream.receiver_.engine_sends_ = false;
      mark(SegmentKind::switch_down, 0);
      stream.receiver_.downs_.fetch_add(1, std::memory_order_release);
      return nullptr;
    case FragmentType::switch_hold: {
      HoldPayload hold;
      std::memcpy(&hold, payload, sizeof hold);
      if (hold.engine != stream.receiver_.arrived_.load(std::memory_order_relaxed))
        return "a switch down at another byte";
      const bool takes_end_back = stream.receiver_.peer_fin_;
      if (takes_end_back ? stream.receiver_.end_withdrawn_.load(std::memory_order_relaxed)
                         : is_one_too_many(FragmentType::switch_hold))
        return "a switch down that answers nothing";
      // After the end, only a hold that takes it back is a move.
      if (takes_end_back && hold.kernel == HoldPayload::kNotHeld) {
        stream.receiver_.on_hold(hold.kernel);
        return nullptr;
      }
      // Before the reader learns of the hold.
      stream.receiver_.end_withdrawn_.store(takes_end_back, std::memory_order_relaxed);
      stream.receiver_.engine_sends_ = false;
      stream.receiver_.on_hold(hold.kernel);
      mark(SegmentKind::switch_down, 1);
      stream.receiver_.downs_.fetch_add(1, std::memory_order_release);
      return nullptr;
    }
    case FragmentType::returned:
      return stream.sender_.take_back({payload, header.length}) ? nullptr
                                                                : "bytes that nobody takes back";
    case FragmentType::returned_end:
      return stream.sender_.end_return(value_of(payload)) ? nullptr
                                                          : "bytes other than those returned";
    case FragmentType::ask_down:
      if ((value_of(payload) & Receiver::kAskHold) != 0)
        stream.sender_.hold_wanted_.store(true, std::memory_order_relaxed);
      if ((value_of(payload) & Receiver::kAskForGood) != 0) {
        stream.set_reason(Reason::peer_moved_it);
        stream.stay_down_.store(true, std::memory_order_relaxed);
        stream.for_good_.store(true, std::memory_order_relaxed);
      }
      stream.sender_.defer(Sender::kSwitchDown);
      return nullptr;
    case FragmentType::credit: {
      const uint64_t credit = value_of(payload);
      if (credit > stream.sender_.credit_.load(std::memory_order_relaxed))
        stream.sender_.credit_.store(credit, std::memory_order_release);
      events |= kWritable;
      return nullptr;
    }
    case FragmentType::fin:
      if (value_of(payload) != stream.receiver_.arrived_.load(std::memory_order_relaxed))
        return "an end at another byte";
      if (stream.receiver_.peer_fin_) return "an end behind the end";
      mark(SegmentKind::fin, 0);
      // After the mark: whoever knows of the end finds it. release pairs with peer_has_finished().
      stream.receiver_.peer_fin_.store(true, std::memory_order_release);
      stream.receiver_.ended_.store(true, std::memory_order_release);
      if (stream.shares_host()) stream.receiver_.defer(Receiver::kEndTaken);
      stream.services_->stream_ended(stream);
      return nullptr;
    case FragmentType::end_taken:
      stream.sender_.end_taken_.store(true, std::memory_order_relaxed);
      stream.sender_.defer(Sender::kShut);
      return nullptr;
    case FragmentType::reset: {
      if (stream.never_used_engine()) {
        // The peer has no stream that is bound to this connection: it had closed that stream, or
        // will not move it, before it heard of the binding. If it has lost something, the anchor is
        // reset as well.
        stream.be_left_alone(Reason::peer_did_not_move_it);
        return nullptr;
      }
      // As in tcp_reset(): after the peer's end a reset is a broken pipe.
      const int error = stream.receiver_.peer_fin_ ? EPIPE : ECONNRESET;
      stream.receiver_.peer_fin_ = false;  // what was promised complete may not be
      stream.abort(error);
      stream.receiver_.ended_.store(true, std::memory_order_release);
      stream.services_->stream_ended(stream);
      return nullptr;
    }
    case FragmentType::closed:
      if (value_of(payload) != stream.receiver_.arrived_.load(std::memory_order_relaxed))
        return "a close at another byte";
      stream.be_left_alone(Reason::peer_moved_it);
      return nullptr;
    case FragmentType::buffers: {
      BuffersPayload buffers;
      std::memcpy(&buffers, payload, sizeof buffers);
      stream.receiver_.peer_buffers_.store({buffers.send, buffers.receive},
                                           std::memory_order_relaxed);
      stream.receiver_.defer(Receiver::kLimit);
      return nullptr;
    }
    case FragmentType::probe_reply:
      stream.probe_answered_ = true;
      return nullptr;
    case FragmentType::probe:  // the dispatcher answers it
    case FragmentType::data:
      break;
  }
  return "a fragment of an unknown kind";
}

}  // namespace sidestep::engine

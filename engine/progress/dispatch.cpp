#include "engine/progress/dispatch.hpp"

#include <algorithm>
#include <cstring>

#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"
#include "engine/stream/stream_table.hpp"

namespace sidestep::engine {
namespace {

/// True if the payload of this type is a piece of a stream, of any length.
bool has_stream_bytes(FragmentType type) noexcept {
  return type == FragmentType::data || type == FragmentType::handed_back;
}

/// Bytes of payload that a fragment of this type has; -1 if there is no such type.
int payload_size(FragmentType type) noexcept {
  switch (type) {
    case FragmentType::data:
    case FragmentType::handed_back:
      return 0;
    case FragmentType::go:
    case FragmentType::join:
      return sizeof(GoPayload);
    case FragmentType::switch_hold:
      return sizeof(HoldPayload);
    case FragmentType::switch_up:
    case FragmentType::switch_down:
    case FragmentType::ask_down:
    case FragmentType::credit:
    case FragmentType::fin:
    case FragmentType::handed_back_end:
    case FragmentType::closed:
      return sizeof(uint64_t);
    case FragmentType::probe:
      return sizeof(ProbePayload);
    case FragmentType::buffers:
      return sizeof(BuffersPayload);
    case FragmentType::switch_ack:
    case FragmentType::reset:
    case FragmentType::probe_reply:
    case FragmentType::check_anchor:
    case FragmentType::end_taken:
      return 0;
  }
  return -1;
}

uint64_t value_of(const std::byte* payload) noexcept {
  uint64_t value = 0;
  std::memcpy(&value, payload, sizeof value);
  return value;
}

}  // namespace

bool Dispatcher::breach(Connection& connection, const char* what) noexcept {
  connection.breach = what;
  log(LogLevel::error, "node %u (pid %d) broke the protocol (%s); the connection is closed",
      connection.peer().nid, connection.peer().pid, what);
  return false;
}

inline void Dispatcher::queue_data(Stream& stream, const std::byte* payload, uint32_t length,
                                   const RecvCompletion& completion, uint32_t& handed_on) noexcept {
  // Data for a closed stream is answered by a reset, as the kernel does for a closed socket. The
  // bytes count all the same: the peer's end mark, which may be under way, includes them.
  const bool drop = stream.closed_;
  if (drop) stream.defer(Stream::kReset);
  if (!drop &&
      !stream.queue_.push({payload, completion.buffer, nullptr, 0, length, SegmentKind::data})) {
    log(LogLevel::error, "out of memory: a stream is reset");
    stream.die(ENOBUFS);
    return;
  }
  if (!drop) ++handed_on;
  // release pairs with rx_queued().
  stream.rx_arrived_.store(stream.rx_arrived_.load(std::memory_order_relaxed) + length,
                           std::memory_order_release);
  touch(stream, kReadable);
}

bool Dispatcher::handle(Connection& connection, const FragmentHeader& header,
                        const std::byte* payload, uint32_t part, const RecvCompletion& completion,
                        uint32_t& handed_on) noexcept {
  Stream* stream = streams_.find(header.stream, header.generation);
  if (static_cast<FragmentType>(header.type) == FragmentType::probe) {
    answer_probe(connection, stream, payload);
    return true;
  }
  // The stream was closed here while this was under way: nobody is left to be told.
  if (stream == nullptr) return true;
  const auto type = static_cast<FragmentType>(header.type);
  if (type == FragmentType::go || type == FragmentType::join) {
    GoPayload go;
    std::memcpy(&go, payload, sizeof go);
    if (!admit(connection, *stream, go)) return true;
  }
  // A stream that goes on alone may still hear of a move that the peer had put off behind its
  // reset, or that crossed its own.
  if (stream->connection() != &connection || stream->is_dead() || stream->landed_) return true;
  if (type != FragmentType::data) return handle_control(connection, *stream, header, payload);

  if (header.length == 0) return breach(connection, "data of no length");
  if (stream->peer_fin_) return breach(connection, "data behind the end");
  if (stream->rx_arrived_.load(std::memory_order_relaxed) + header.length >
      stream->rx_credit_.load(std::memory_order_relaxed))
    return breach(connection, "more data than there was credit for");
  if (part != 0) queue_data(*stream, payload, part, completion, handed_on);
  return true;
}

bool Dispatcher::dispatch(const RecvCompletion& completion) noexcept {
  Connection& connection = connection_of(*completion.endpoint);
  connection.received.add_exclusive();
  if (connection.breach !=
      nullptr) {  // where one fragment ends and the next begins is anybody's guess
    if (completion.buffer != nullptr) completion.buffer->drop(RecvBuffer::kPolled);
    return true;
  }
  uint32_t handed_on = 0;
  bool sound = true;
  uint32_t at = 0;
  if (connection.cut.left != 0) {
    at = std::min(connection.cut.left, completion.length);
    sound = continue_cut(connection, at, completion, handed_on);
  }
  while (sound && at < completion.length) {
    const uint32_t room = completion.length - at;
    FragmentHeader header;
    const std::byte* payload = completion.data + at;
    uint32_t size = room;  // of the fragment
    uint32_t part = room;  // of its payload, here
    if (completion.header != nullptr) {
      header = *completion.header;
    } else {
      if (room < sizeof header) {
        sound = breach(connection, "a fragment without a header");
        break;
      }
      // The peer may still write here, so the header is copied once; only the copy is checked and
      // used.
      std::memcpy(&header, payload, sizeof header);
      payload += sizeof header;
      const auto type = static_cast<FragmentType>(header.type);
      const int expected = payload_size(type);
      size = static_cast<uint32_t>(fragment_size(header.length));
      const bool is_cut = size > room;
      // Bytes are handed back only within a host, where nothing is cut.
      if (expected < 0 || header.length > kMaxFragmentPayload ||
          (is_cut && (!completion.more || type == FragmentType::handed_back)) ||
          (!has_stream_bytes(type) && header.length != static_cast<uint32_t>(expected))) {
        sound = breach(connection, "a fragment of a kind or length that there is not");
        break;
      }
      part = std::min(header.length, room - static_cast<uint32_t>(sizeof header));
      if (is_cut) {
        connection.cut = {header, header.length - part, size - room, {}};
        if (type != FragmentType::data) {
          std::memcpy(connection.cut.control.data(), payload, part);
          break;  // its end comes first in the next completion
        }
      }
    }
    const bool alone = at == 0 && size == completion.length;
    // Most fragments are the only one of their work request: one reference, known beforehand.
    // relaxed: the reader learns of the buffer from the queue, whose push is a release.
    if (alone) completion.buffer->references.store(1, std::memory_order_relaxed);
    sound = handle(connection, header, payload, part, completion, handed_on);
    fragments_.add_exclusive();
    if (alone) {
      if (handed_on == 0) completion.buffer->drop(1);
      return sound;
    }
    at += std::min(size, room);
  }
  if (completion.buffer != nullptr) completion.buffer->drop(RecvBuffer::kPolled - handed_on);
  return sound;
}

bool Dispatcher::continue_cut(Connection& connection, uint32_t bytes,
                              const RecvCompletion& completion, uint32_t& handed_on) noexcept {
  Connection::Cut& cut = connection.cut;
  const uint32_t part = std::min(cut.payload, bytes);
  const bool is_data = static_cast<FragmentType>(cut.header.type) == FragmentType::data;
  if (!is_data) {
    std::memcpy(cut.control.data() + cut.header.length - cut.payload, completion.data, part);
  } else if (part != 0) {
    // What handle() has checked for the whole fragment holds for its end, too, but the stream may
    // be gone.
    Stream* const stream = streams_.find(cut.header.stream, cut.header.generation);
    if (stream != nullptr && stream->connection() == &connection && stream->is_bound() &&
        !stream->is_dead())
      queue_data(*stream, completion.data, part, completion, handed_on);
  }
  cut.payload -= part;
  cut.left -= bytes;
  if (cut.left != 0) return completion.more || breach(connection, "a fragment without its end");
  return is_data || handle_cut_control(connection, completion);
}

bool Dispatcher::handle_cut_control(Connection& connection,
                                    const RecvCompletion& completion) noexcept {
  const Connection::Cut& cut = connection.cut;
  uint32_t none = 0;
  fragments_.add_exclusive();
  return handle(connection, cut.header, cut.control.data(), 0, completion, none);
}

bool Dispatcher::admit(Connection& connection, Stream& stream, const GoPayload& go) noexcept {
  if (stream.phase() == Phase::undecided && stream.claim_.peer == connection.peer().number &&
      stream.claim_.generation == go.generation && connection.is_lane_of(stream.tuple()) &&
      is_open(stream.anchor_state())) {
    stream.bind(connection, go.stream, go.generation);
    return true;
  }
  if (stream.connection() == &connection && stream.peer_stream_ == go.stream &&
      stream.peer_generation_ == go.generation)
    return true;
  // Our stream belongs to another one, or has gone another way meanwhile. The peer's stream stays
  // on its anchor; the other streams of the connection have no part in this. If the ring is full,
  // the peer's stream hears nothing, and its reads go on waiting for both carriers.
  connection.send_control(go.stream, go.generation, FragmentType::reset, nullptr, 0);
  return false;
}

void Dispatcher::answer_probe(Connection& connection, const Stream* stream,
                              const std::byte* payload) noexcept {
  ProbePayload probe;
  std::memcpy(&probe, payload, sizeof probe);
  const bool open = stream != nullptr && stream->connection() == &connection && !stream->closed_ &&
                    !stream->is_dead();
  // If the ring is full, the answer is dropped: the peer asks again.
  connection.send_control(probe.stream, probe.generation,
                          open ? FragmentType::probe_reply : FragmentType::reset, nullptr, 0);
}

bool Dispatcher::handle_control(Connection& connection, Stream& stream,
                                const FragmentHeader& header, const std::byte* payload) noexcept {
  const auto mark = [&](SegmentKind kind, uint64_t value) {
    stream.queue_.push({nullptr, nullptr, nullptr, value, 0, kind});
    touch(stream, kReadable);
    // The mark may be all that is missing, and perhaps nobody reads. The exchange pairs with that
    // of defer(), which comes after stay_down_ was set: one of the two finds what the other has
    // done.
    stream.deferred_.fetch_or(0, std::memory_order_seq_cst);
    if (stream.stay_down_.load(std::memory_order_relaxed)) stream.defer(Stream::kSettle);
  };
  // Marks are kept until they are read. A correct peer moves up once for each go, and down once,
  // and down once more if it was asked to hold; the next go is sent when that has been read. So
  // there are never more than a few marks. A peer that sends more would fill the memory.
  // acquire pairs with the release by the thread that counts a go, before the go is sent.
  const uint32_t goes = stream.rx_goes_.load(std::memory_order_acquire);
  const auto is_one_too_many = [&](FragmentType type) {
    if (type == FragmentType::switch_up) return stream.peer_fin_ || stream.rx_ups_ >= goes;
    return stream.peer_fin_ || stream.rx_downs_.load(std::memory_order_relaxed) > goes;
  };
  switch (static_cast<FragmentType>(header.type)) {
    case FragmentType::go: {
      GoPayload go;
      std::memcpy(&go, payload, sizeof go);
      stream.peer_window_.store(go.window, std::memory_order_relaxed);
      stream.tx_credit_.store(go.credit, std::memory_order_release);
      if (stream.is_limited()) stream.defer(Stream::kLimit);
      stream.go_.store(true, std::memory_order_relaxed);
      stream.defer(Stream::kSwitchUp);
      return true;
    }
    case FragmentType::join:
      return true;  // bound in handle()
    case FragmentType::check_anchor:
      stream.defer(Stream::kCheckAnchor);
      return true;
    case FragmentType::switch_up:
      if (is_one_too_many(FragmentType::switch_up))
        return breach(connection, "a switch up that nobody has asked for");
      ++stream.rx_ups_;
      stream.engine_sends_ = true;
      mark(SegmentKind::switch_up, value_of(payload));
      stream.defer(Stream::kSwitchAck);
      return true;
    case FragmentType::switch_ack:
      stream.tx_acked_.store(true, std::memory_order_seq_cst);
      stream.run_deferred();  // a move down may have waited for this
      return true;
    case FragmentType::switch_down:
      if (value_of(payload) != stream.rx_arrived_.load(std::memory_order_relaxed))
        return breach(connection, "a switch down at another byte");
      if (is_one_too_many(FragmentType::switch_down))
        return breach(connection, "a switch down that answers nothing");
      stream.engine_sends_ = false;
      mark(SegmentKind::switch_down, 0);
      stream.rx_downs_.fetch_add(1, std::memory_order_release);
      return true;
    case FragmentType::switch_hold: {
      HoldPayload hold;
      std::memcpy(&hold, payload, sizeof hold);
      if (hold.engine != stream.rx_arrived_.load(std::memory_order_relaxed))
        return breach(connection, "a switch down at another byte");
      const bool takes_end_back = stream.peer_fin_;
      if (takes_end_back ? stream.end_withdrawn_.load(std::memory_order_relaxed)
                         : is_one_too_many(FragmentType::switch_hold))
        return breach(connection, "a switch down that answers nothing");
      // After the end, only a hold that takes it back is a move.
      if (takes_end_back && hold.kernel == HoldPayload::kNotHeld) {
        stream.on_hold(hold.kernel);
        return true;
      }
      // Before the reader learns of the hold.
      stream.end_withdrawn_.store(takes_end_back, std::memory_order_relaxed);
      stream.engine_sends_ = false;
      stream.on_hold(hold.kernel);
      mark(SegmentKind::switch_down, 1);
      stream.rx_downs_.fetch_add(1, std::memory_order_release);
      return true;
    }
    case FragmentType::handed_back:
      return stream.take_back({payload, header.length}) ||
             breach(connection, "bytes that nobody takes back");
    case FragmentType::handed_back_end:
      return stream.end_hand_back(value_of(payload)) ||
             breach(connection, "other bytes than were handed back");
    case FragmentType::ask_down:
      if ((value_of(payload) & Stream::kAskHold) != 0)
        stream.hold_wanted_.store(true, std::memory_order_relaxed);
      if ((value_of(payload) & Stream::kAskForGood) != 0) {
        stream.set_reason(Reason::peer_moved_it);
        stream.stay_down_.store(true, std::memory_order_relaxed);
        stream.for_good_.store(true, std::memory_order_relaxed);
      }
      stream.defer(Stream::kSwitchDown);
      return true;
    case FragmentType::credit: {
      const uint64_t credit = value_of(payload);
      if (credit > stream.tx_credit_.load(std::memory_order_relaxed))
        stream.tx_credit_.store(credit, std::memory_order_release);
      touch(stream, kWritable);
      return true;
    }
    case FragmentType::fin:
      if (value_of(payload) != stream.rx_arrived_.load(std::memory_order_relaxed))
        return breach(connection, "an end at another byte");
      if (stream.peer_fin_) return breach(connection, "an end behind the end");
      mark(SegmentKind::fin, 0);
      // After the mark: whoever knows of the end finds it. release pairs with peer_has_finished().
      stream.peer_fin_.store(true, std::memory_order_release);
      stream.rx_ended_.store(true, std::memory_order_release);
      if (stream.shares_host()) stream.defer(Stream::kEndTaken);
      node_.stream_ended(stream);
      return true;
    case FragmentType::end_taken:
      stream.end_taken_.store(true, std::memory_order_relaxed);
      stream.defer(Stream::kShut);
      return true;
    case FragmentType::reset: {
      if (stream.never_used_engine()) {
        // The peer has no stream that is bound to this connection: it had closed that stream, or
        // will not move it, before it heard of the binding. If it has lost something, the anchor is
        // reset as well.
        stream.be_left_alone(Reason::peer_did_not_move_it);
        return true;
      }
      // As in tcp_reset(): after the peer's end a reset is a broken pipe.
      const int error = stream.peer_fin_ ? EPIPE : ECONNRESET;
      stream.peer_fin_ = false;  // what was promised complete may not be
      stream.die(error);
      stream.rx_ended_.store(true, std::memory_order_release);
      node_.stream_ended(stream);
      return true;
    }
    case FragmentType::closed:
      if (value_of(payload) != stream.rx_arrived_.load(std::memory_order_relaxed))
        return breach(connection, "a close at another byte");
      stream.be_left_alone(Reason::peer_moved_it);
      return true;
    case FragmentType::buffers: {
      BuffersPayload buffers;
      std::memcpy(&buffers, payload, sizeof buffers);
      stream.peer_buffers_.store({buffers.send, buffers.receive}, std::memory_order_relaxed);
      stream.defer(Stream::kLimit);
      return true;
    }
    case FragmentType::probe_reply:
      stream.probe_answered_ = true;
      return true;
    case FragmentType::probe:  // answered in handle()
    case FragmentType::data:
      break;
  }
  return breach(connection, "a fragment of an unknown kind");
}

void Dispatcher::notify() noexcept {
  if (touched_count_ == 0) return;
  // Once for each batch, in which the readers of a busy stream find many fragments at a time. Pairs
  // with WatchList::add(): a watcher that is missed here sees what was queued.
  for (size_t i = 0; i < touched_count_; ++i) {
    const uint32_t events = touched_[i].events;
    touched_[i].stream->signal((events & kReadable) != 0 ? events | kArrived : events);
  }
  touched_count_ = 0;
}

}  // namespace sidestep::engine

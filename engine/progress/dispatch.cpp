#include "engine/progress/dispatch.hpp"

#include <algorithm>
#include <cstring>

#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream_input.hpp"
#include "engine/stream/stream_table.hpp"

namespace sidestep::engine {
namespace {

/// True if the payload of this type is a piece of a stream, of any length.
bool has_stream_bytes(FragmentType type) noexcept {
  return type == FragmentType::data || type == FragmentType::returned;
}

/// Bytes of payload that a fragment of this type has; -1 if there is no such type.
int payload_size(FragmentType type) noexcept {
  switch (type) {
    case FragmentType::data:
    case FragmentType::returned:
      return 0;
    case FragmentType::receive_ready:
    case FragmentType::join:
      return sizeof(ReceiveReadyPayload);
    case FragmentType::switch_hold:
      return sizeof(HoldPayload);
    case FragmentType::switch_up:
    case FragmentType::switch_down:
    case FragmentType::ask_down:
    case FragmentType::credit:
    case FragmentType::fin:
    case FragmentType::returned_end:
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

}  // namespace

bool Dispatcher::breach(Connection& connection, const char* what) noexcept {
  connection.breach = what;
  log(LogLevel::error, "node %u (pid %d) broke the protocol (%s); the connection is closed",
      connection.peer().nid, connection.peer().pid, what);
  return false;
}

inline void Dispatcher::take_data(Stream& stream, const std::byte* payload, uint32_t length,
                                  const RecvCompletion& completion, uint32_t& handed_on) noexcept {
  if (StreamInput(stream).take_data(payload, length, completion.buffer)) ++handed_on;
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
  StreamInput input(*stream);
  const auto type = static_cast<FragmentType>(header.type);
  if (type == FragmentType::receive_ready || type == FragmentType::join) {
    ReceiveReadyPayload ready;
    std::memcpy(&ready, payload, sizeof ready);
    if (!input.admit(connection, ready)) return true;
  }
  if (!input.hears(connection)) return true;
  if (type == FragmentType::data) {
    if (const char* const what = input.data_breach(header.length)) return breach(connection, what);
    if (part != 0) take_data(*stream, payload, part, completion, handed_on);
    return true;
  }
  uint32_t events = 0;
  const char* const what = input.take_control(header, payload, events);
  if (events != 0) touch(*stream, events);
  return what == nullptr || breach(connection, what);
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
      // Bytes are returned only within a host, where nothing is cut.
      if (expected < 0 || header.length > kMaxFragmentPayload ||
          (is_cut && (!completion.more || type == FragmentType::returned)) ||
          (!has_stream_bytes(type) && header.length != static_cast<uint32_t>(expected))) {
        sound = breach(connection, "a fragment of impossible kind or length");
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
        !stream->is_aborted())
      take_data(*stream, completion.data, part, completion, handed_on);
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

void Dispatcher::answer_probe(Connection& connection, Stream* stream,
                              const std::byte* payload) noexcept {
  ProbePayload probe;
  std::memcpy(&probe, payload, sizeof probe);
  const bool open = stream != nullptr && StreamInput(*stream).answers_probe(connection);
  // If the ring is full, the answer is dropped: the peer asks again.
  connection.send_control(probe.stream, probe.generation,
                          open ? FragmentType::probe_reply : FragmentType::reset, nullptr, 0);
}

void Dispatcher::notify() noexcept {
  if (touched_count_ == 0) return;
  // Once for each batch, so that the readers of a busy stream find many fragments at a time. Pairs
  // with WatchList::add(): a watcher that is missed here sees what was queued.
  for (size_t i = 0; i < touched_count_; ++i) {
    const uint32_t events = touched_[i].events;
    touched_[i].stream->signal((events & kReadable) != 0 ? events | kArrived : events);
  }
  touched_count_ = 0;
}

}  // namespace sidestep::engine

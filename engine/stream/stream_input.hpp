#pragma once
/// What the peer sends for a stream: data, and the marks and requests of the protocol in
/// stream.hpp.
///
/// The dispatcher calls this, under the lock of the stream's lane. Nothing that comes from the peer
/// is believed: a breach of the protocol is returned as a text, after which the connection must not
/// be used any more.
#include <cstddef>
#include <cstdint>

#include "engine/device/device.hpp"
#include "engine/stream/stream.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class StreamInput {
 public:
  explicit StreamInput(Stream& stream) noexcept : stream_(stream) {}

  /// True if the peer's stream that is ready, or joins, is the other end of this one. Binds the
  /// stream if need be, and refuses any other.
  bool admit(Connection& connection, const ReceiveReadyPayload& ready) noexcept;
  /// False if what comes over this connection is no longer for the stream: one that goes on alone
  /// may still hear of a move that the peer had put off behind its reset, or that crossed its own.
  bool hears(const Connection& connection) const noexcept {
    return stream_.connection() == &connection && !stream_.is_aborted() && !stream_.failed_over_;
  }
  /// True if a probe of this stream is to be answered: it is open, and has this connection.
  bool answers_probe(const Connection& connection) const noexcept {
    return stream_.connection() == &connection && !stream_.closed_ && !stream_.is_aborted();
  }
  /// The breach that data of so many bytes would be; null if it is none.
  const char* data_breach(uint32_t length) const noexcept {
    if (length == 0) return "data of no length";
    if (stream_.receiver_.peer_fin_) return "data behind the end";
    if (stream_.receiver_.arrived_.load(std::memory_order_relaxed) + length >
        stream_.receiver_.credit_.load(std::memory_order_relaxed))
      return "more data than there was credit for";
    return nullptr;
  }
  /// Queues data. False if it is dropped; else the stream holds a reference to the buffer.
  [[gnu::always_inline]] bool take_data(const std::byte* payload, uint32_t length,
                                        RecvBuffer* buffer) noexcept {
    // Data for a closed stream is answered by a reset, as the kernel does for a closed socket. The
    // bytes count all the same: the peer's end mark, which may be under way, includes them.
    const bool drop = stream_.closed_;
    if (drop) {
      stream_.sender_.defer(Sender::kReset);
    } else if (!stream_.receiver_.queue_.push(
                   {payload, buffer, nullptr, 0, length, SegmentKind::data})) {
      lack_memory();
      return false;
    }
    // release pairs with rx_queued().
    stream_.receiver_.arrived_.store(
        stream_.receiver_.arrived_.load(std::memory_order_relaxed) + length,
        std::memory_order_release);
    return !drop;
  }
  /// Does what any other fragment says. Returns the breach that it is, or null. Adds to `events`
  /// what the watchers have to be told.
  const char* take_control(const FragmentHeader& header, const std::byte* payload,
                           uint32_t& events) noexcept;

 private:
  [[gnu::cold]] void lack_memory() noexcept;

  Stream& stream_;
};

}  // namespace sidestep::engine

#pragma once
/// What may be decided about a stream whose other end is being looked for: it is bound, or it stays
/// on the kernel. The manager decides, under the node's receive lock.
#include <cstdint>

#include "engine/base/reason.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class UndecidedStream {
 public:
  /// True if there is a stream and nothing has been decided about it.
  static bool is_one(const Stream* stream) noexcept {
    return stream != nullptr && stream->phase() == Phase::undecided;
  }

  explicit UndecidedStream(Stream& stream) noexcept : stream_(stream) {}

  /// Enters it in the directory, unless it is in one or its descriptor is gone.
  void list(Directory& directory) noexcept {
    if (!stream_.is_closed()) stream_.list(directory);
  }
  /// The same, and takes it out of the directory in which it was.
  void list_anew(Directory& directory) noexcept {
    if (stream_.is_closed()) return;
    stream_.unlist();
    stream_.list(directory);
  }
  void unlist() noexcept { stream_.unlist(); }
  /// Keeps a stream that has an option which only the kernel serves, or is no longer what its
  /// addresses name, because it has ended or been half closed. True if it has kept it.
  bool keep_if_it_cannot_move() noexcept;
  /// False if another peer has been told that this end is here, and may still bind the stream.
  /// `peer`: its number; `generation`: of its stream.
  bool may_be_claimed(uint32_t peer, uint32_t generation, uint64_t now) const noexcept;
  /// Notes that the peer is told that this end is here, so that its receive_ready or join may bind
  /// the stream.
  void claim(uint32_t peer, uint32_t generation, uint64_t now) noexcept {
    stream_.claim_ = {peer, generation, now};
  }
  void bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept {
    stream_.bind(connection, peer_stream, peer_generation);
  }
  /// Notes why it is on the kernel until something is decided.
  void note(Reason reason) noexcept { stream_.set_reason(reason); }
  /// Leaves it to the kernel, for the reason that was noted.
  void leave_to_kernel() noexcept;
  /// The same, if nothing has been decided; whatever has been, it does not start over.
  void keep_for_good() noexcept {
    stream_.for_good_.store(true, std::memory_order_seq_cst);
    if (is_one(&stream_)) stream_.set_phase(Phase::kernel);
  }

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

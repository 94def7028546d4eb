#pragma once
/// A stream whose connection is gone: what its peer has to know, and how it goes on (recovery.hpp).
/// Under the node's receive lock.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/stream/recovery.hpp"
#include "engine/stream/stream.hpp"
#include "engine/wire/stream_report.hpp"

namespace sidestep::engine {

class StreamFailover {
 public:
  explicit StreamFailover(Stream& stream) noexcept : stream_(stream) {}

  /// The peer's id and generation, by which fragments name the stream.
  std::pair<uint32_t, uint32_t> name_at_peer() const noexcept {
    return {stream_.peer_stream_, stream_.peer_generation_};
  }
  /// Called when the connection has failed and its ring is closed. Returns what this end has sent
  /// and received.
  StreamReport report() noexcept {
    return stream_.is_bound() ? stream_.begin_failover() : stream_.report_settled();
  }
  /// True if the stream is still to be moved to its anchor.
  bool is_to_fail_over() const noexcept {
    return stream_.is_bound() && !stream_.is_aborted() && !stream_.failed_over_;
  }
  /// The same, and it can go on from where the peer's report says the two directions are.
  bool can_fail_over(const StreamReport& theirs) const noexcept {
    return is_to_fail_over() && stream_.can_fail_over(theirs);
  }
  /// `unconfirmed`: the last engine bytes that this end sent, from where the peer's count ends.
  void fail_over(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept {
    stream_.fail_over(theirs, std::move(unconfirmed));
  }
  /// Called for a stream that the peer has not heard of: the connection failed before the first
  /// fragment of it got through. It stays where it was.
  void stay_if_it_never_left() noexcept {
    if (is_to_fail_over() && stream_.never_used_engine()) stream_.fail_over({}, {});
  }
  /// Called when nothing more can be learned from the peer: the stream goes on alone, or is lost.
  void end(PeerProcess peer) noexcept;

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

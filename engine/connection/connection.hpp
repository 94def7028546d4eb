#pragma once
/// What joins two nodes: one endpoint of a device, one ORB per direction, any number of streams.
#include <array>
#include <memory>

#include "engine/base/address.hpp"
#include "engine/base/counters.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/reason.hpp"
#include "engine/connection/bound_stream.hpp"
#include "engine/connection/orb.hpp"
#include "engine/connection/silence.hpp"
#include "engine/connection/stream_lane.hpp"
#include "engine/device/device.hpp"

namespace sidestep::engine {

class Posting;
class Stream;

/// Who is at the other end. Each host gives out NIDs by itself, so two hosts may have given out the
/// same one. A node therefore tells its peers apart by a number of its own: the NID of a peer on
/// the same host, kRemotePeers + n for a peer on another host.
struct PeerName {
  static constexpr uint32_t kRemotePeers = 1U << 16;
  static constexpr uint32_t kPeers = 1U << 17;
  uint32_t number = 0;
  uint16_t nid = 0;
  int pid = -1;  ///< -1 on another host
  Address host;  ///< of a peer on another host
  bool is_remote() const noexcept { return number >= kRemotePeers; }
};

class Connection final : public EndpointUser {
 public:
  Connection(Posting& posting, const PeerName& peer, Device& device,
             std::unique_ptr<Endpoint> endpoint);

  const PeerName& peer() const noexcept { return peer_; }
  uint32_t lane() const noexcept { return endpoint_->lane; }
  /// True if a stream between these two nodes belongs to this connection's lane.
  bool is_lane_of(const Tuple& tuple) const noexcept {
    const bool has_lanes = device_.kind() == DeviceKind::shm && !is_own();
    return lane() == (has_lanes ? lane_of(tuple) : 0);
  }
  bool is_own() const noexcept;
  /// Its place in the table; the table sets it.
  uint32_t number() const noexcept { return number_; }
  Device& device() noexcept { return device_; }
  Endpoint& endpoint() noexcept { return *endpoint_; }
  Orb& orb() noexcept { return orb_; }

  /// As Orb::reserve(), but asks the device for confirmed space before it gives up. Any thread.
  uint64_t reserve(uint32_t payload, bool control) noexcept;
  /// True if a data fragment would find room.
  bool has_room() noexcept;
  /// Commits and posts one control fragment. False if the ring is full.
  bool send_control(uint32_t stream, uint32_t generation, FragmentType type, const void* payload,
                    uint32_t length) noexcept;
  /// The bytes of one send that are worth posting before the rest of it is copied.
  uint32_t post_batch() const noexcept { return post_batch_; }
  /// The payload of one data fragment of a long send.
  uint32_t max_payload() const noexcept { return max_payload_; }
  /// The same for an endpoint with this max_request() and post_batch(). If whole requests are
  /// posted, the payload is chosen so that fragments fill them: three of the longest would leave a
  /// quarter empty.
  static uint32_t payload_limit(uint32_t request, uint32_t post_batch) noexcept;
  /// Posts what is committed, or makes sure that the thread that is posting now does.
  void kick() noexcept;
  /// Called after kick(): waits until everything before `end`, all of it committed, is where a poll
  /// of the peer finds it, as a program may expect of what it has sent. It also waits for what
  /// other threads have reserved before that: none of them waits for anything, or takes a lock,
  /// before it commits. It does not wait for room in the device, which the peer has to make, and
  /// never for ever.
  [[gnu::always_inline]] void wait_until_posted(uint64_t end) noexcept {
    if (orb_.posted() < end) [[unlikely]]
      wait_until_posted_slowly(end);
  }
  /// Tries once to post; false if another thread holds the post lock.
  bool try_post() noexcept;
  /// Leaves posting to the next thread that makes progress. Any lock may be held.
  void request_post() noexcept override;

  /// Called when a sender found the ring full: asks the peer to tell when it releases something.
  void want_space() noexcept;
  void forget_space() noexcept;
  bool is_starved() const noexcept { return starved_.load(std::memory_order_relaxed); }
  /// Progress: looks for confirmed space. True if there is enough of it to wake the senders.
  bool relieve() noexcept;

  /// True if nothing that was given to this connection would be lost if the process ended now.
  bool is_flushed() noexcept;

  /// The streams that are bound to this connection, the newest first. The list needs no memory: a
  /// stream is in at most one list. All of it is under the lane's lock; the visitor may remove the
  /// stream that it is given.
  void add_stream(BoundStream& stream) noexcept;
  void remove_stream(BoundStream& stream) noexcept;
  template <typename Visitor, typename Bound = Stream>
  void for_streams(Visitor visit) {
    for (BoundStream* stream = first_stream_; stream != nullptr;) {
      BoundStream* const next = stream->next_;
      visit(static_cast<Bound&>(*stream));
      stream = next;
    }
  }
  size_t stream_count() const noexcept { return stream_count_; }

  bool is_closed() const noexcept { return closed_.load(std::memory_order_acquire); }
  void set_dead() noexcept { closed_.store(true, std::memory_order_release); }

  Counter work_requests;  // under the post lock
  Counter fragments;

  /// How often somebody signaled interest since the last drain (the paper's atomic counter).
  std::atomic<uint32_t> interest{0};
  Counter received;  // work requests; under the lane's lock
  uint64_t uses() const noexcept { return work_requests.get() + received.get(); }
  // Both under the node's receive lock. used_at: when something was last sent or received, to a
  // tick of the progress thread.
  uint64_t uses_seen = 0;
  uint64_t used_at = 0;
  std::atomic<uint64_t> was_crowded{0};            // Crowding::is_peer_crowded()
  Reason down_reason = Reason::connection_failed;  // of its streams; the manager sets it
  // The connection is closed for another connection's sake. The manager sets the first; the second
  // is under the node's receive lock.
  bool makes_way = false;
  bool makes_way_at_peer = false;
  bool failure_reported = false;  // progress, under the node's receive lock
  // Valid once the connection is closed, under the node's receive lock: where the ring was closed,
  // and whether the manager still has a use for the object.
  uint64_t orb_end = 0;
  bool awaits_report = false;
  uint64_t stalled_since = 0;  // progress, under the lane's lock: see spill_held_up_locked()
  uint64_t stalled_unreleased = 0;
  Silence silence;
  const char* breach = nullptr;  ///< dispatcher: how the peer broke the protocol
  /// Dispatcher: the end of a fragment whose work request continues in the next completion.
  struct Cut {
    FragmentHeader header{};
    uint32_t payload = 0;  ///< payload bytes that are still to come
    uint32_t left = 0;     ///< the same with the padding behind them; 0: nothing was cut
    /// What has arrived of a fragment that is not data.
    std::array<std::byte, kMaxControlPayload> control{};
  } cut;

 private:
  /// The streams for which something was posted, as the peer numbers them; `all` stands for every
  /// stream that there is, if they do not fit.
  struct Receivers {
    static constexpr size_t kRoom = 64;
    std::array<uint32_t, kRoom> streams;
    size_t count = 0;
    bool all = false;
  };
  void note_receivers(const Orb::Ready& ready, Receivers& receivers) const noexcept;
  void post_locked(Receivers& receivers) noexcept;
  void ring(const Receivers& receivers) noexcept;
  void wait_until_posted_slowly(uint64_t end) noexcept;

  friend class ConnectionTable;
  Posting& posting_;
  const PeerName peer_;
  uint32_t number_ = 0;
  Device& device_;
  const std::unique_ptr<Endpoint> endpoint_;
  const uint32_t max_request_;
  const uint32_t post_batch_;
  const uint32_t max_payload_;
  const bool has_doorbell_;
  const bool wakes_readers_;
  Orb orb_;
  std::atomic<bool> starved_{false};
  std::atomic<bool> closed_{false};
  alignas(64) Mutex post_lock_;
  size_t room_ = 0;  // requests that the endpoint has room for, at least; under the post lock
  BoundStream* first_stream_ = nullptr;
  size_t stream_count_ = 0;
};

/// The connection of an endpoint that is in use.
inline Connection& connection_of(const Endpoint& endpoint) noexcept {
  return static_cast<Connection&>(*endpoint.user);
}

}  // namespace sidestep::engine

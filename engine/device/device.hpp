#pragma once
/// What the engine asks of a device: the verbs that the msgrc engine uses, and no more.
///
/// A Device is one way to reach nodes (libibverbs, shared memory); an Endpoint is one end of its
/// connection to one node (a reliable connected queue pair, a shared-memory channel). Nothing above
/// this interface knows which device it is on. The terms are those of ibv_post_send(3) and
/// ibv_poll_cq(3).
///
/// Threads: post_send() is called under the connection's post lock, poll_recv() by one thread at a
/// time (the lock of the lane), completed(), release() and the doorbell calls by any thread. No
/// call blocks or throws; none of the data path calls allocates.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/nap.hpp"
#include "engine/wire/endpoint_address.hpp"
#include "engine/wire/fragment.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

class Endpoint;
class HalfOpen;
struct FragmentHeader;

/// One posted send: a piece of the ORB. Completion is reported by position, in order.
struct SendRequest {
  uint64_t position;  ///< ORB position of the first byte
  uint32_t length;    ///< bytes; 0 carries the immediate data alone
  uint32_t immediate;
};

/// A received piece that stays valid until its last reference is released. The poller gets it with
/// kPolled references and drops those that it does not hand on.
struct RecvBuffer {
  static constexpr uint32_t kPolled = 1U << 24;
  std::atomic<uint32_t> references{0};
  uint32_t length = 0;
  Endpoint* endpoint = nullptr;

  /// Drops `count` references; whoever drops the last returns the buffer to the device.
  /// acq_rel: the reader's last load comes before the device lets the memory be overwritten.
  inline void drop(uint32_t count) noexcept;
};

/// A poll asks for at least this many completions.
inline constexpr size_t kLeastPolled = 128;

/// One completed receive. The payload is contiguous here; a device that scatters into several
/// buffers reports one completion for each, in order, with none of another endpoint between them.
struct RecvCompletion {
  Endpoint* endpoint;
  const std::byte* data;
  uint32_t length;
  uint32_t immediate;
  RecvBuffer* buffer;  ///< null when length is 0
  bool more;           ///< the same work request continues in the next completion
  /// Set if the header did not arrive with the bytes: the header of the one fragment, of
  /// FragmentType::data, whose payload is exactly these bytes. It has been checked, and is valid
  /// until the next poll.
  const FragmentHeader* header;
};

/// The user of an endpoint: what a device may call back.
class EndpointUser {
 public:
  /// Called when the endpoint has something to post, or room for it. Leaves the posting to the next
  /// thread that makes progress. Any thread; any lock may be held.
  virtual void request_post() noexcept = 0;

 protected:
  ~EndpointUser() = default;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// The memory of this direction's ORB: its size is a power of two, and it is mapped twice in a
  /// row.
  virtual std::span<std::byte> orb_memory() noexcept = 0;
  /// The most bytes that one work request can carry.
  virtual uint32_t max_request() const noexcept = 0;

  /// The bytes of one send that are worth a post of their own. Few where posting is cheap, because
  /// the peer then copies the beginning while this side still copies the end.
  virtual uint32_t post_batch() const noexcept { return 1; }
  /// Returns how many requests post_send() would take now. Under the post lock.
  virtual size_t send_room() noexcept = 0;
  /// Posts the requests in order as one chain. The caller passes at most as many as send_room()
  /// returned, less those posted since: room grows by itself, and only post_window() takes some of
  /// it. Returns how many were taken; fewer if the endpoint has failed.
  virtual size_t post_send(std::span<const SendRequest> chain) noexcept = 0;
  /// Called under the post lock, after the last post_send(). If `owes_window` is set, sends an
  /// empty work request that tells the peer what no other request has told it.
  virtual void post_window(uint32_t immediate) noexcept = 0;
  /// Makes sure that the end of a peer is noticed (is_broken()), even where nothing may be sent to
  /// it. Any thread.
  virtual void poke() noexcept = 0;
  /// Called after post_send() and the caller's full barrier: wakes the peer if it is parked. If an
  /// adapter does that by itself, has_doorbell() is false and nobody need call this.
  virtual void ring_if_parked() noexcept = 0;
  virtual bool has_doorbell() const noexcept { return true; }
  /// True if a thread that posts can wake exactly those threads that wait for a stream: see nap()
  /// and wake_readers().
  virtual bool wakes_readers() const noexcept { return false; }
  /// Returns the word that a thread sleeps on until something comes for a stream of this side, and
  /// the value to expect: while the word has it, nothing has come that was not posted before this
  /// call. The call is a full barrier. Any thread.
  virtual Nap nap(uint32_t) noexcept { return {}; }
  /// True if the peer has changed the word of such a nap since it had this value. The peer then
  /// goes on to wake the threads that sleep on it.
  virtual bool has_rung(uint32_t, uint32_t) const noexcept { return false; }
  /// Called after post_send() and the caller's full barrier: wakes the threads of the peer that
  /// wait for these streams, which are numbered as the peer numbers them. Any thread.
  virtual void wake_readers(std::span<const uint32_t>) noexcept {}
  virtual void wake_all_readers() noexcept {}
  /// Called when this process is ending. If the device keeps room back for this moment, whatever is
  /// still to be posted may now use it. Any thread, any number of times.
  virtual void use_reserve() noexcept {}
  /// True if everything posted is where the end of this process can't take it back. Asks for what
  /// it does not know yet, so the caller repeats the call until it is true. Any thread.
  virtual bool is_flushed() noexcept = 0;
  /// Called when this process has said over this endpoint all that it will ever say. A device that
  /// can leaves word of it for peer_has_left(); for other devices the manager tells the peer. Any
  /// thread.
  virtual void leave() noexcept {}
  /// True if the peer, which is known to be gone, has left word that it had said everything.
  virtual bool peer_has_left() const noexcept { return false; }
  /// True if everything before this ORB position, all of it posted, is where a poll of the peer
  /// finds it, whatever else the peer learns afterwards and by whatever route. Asks for what it
  /// does not know yet. Any thread.
  virtual bool has_arrived(uint64_t position) noexcept = 0;
  /// True if, once it is known that the peer has ended an anchor, a poll finds everything that the
  /// peer had posted before it did so, even if the peer was killed in between.
  virtual bool is_ordered() const noexcept { return true; }
  /// Returns the ORB position before which everything is confirmed: the front of the ring may move
  /// there.
  virtual uint64_t completed() noexcept = 0;
  /// Called now and then, under the node's receive lock: finds an endpoint that has stopped working
  /// without saying so.
  virtual void watch(uint64_t) noexcept {}
  /// Tells the peer whether this side waits for confirmations, so that it rings when some arrive.
  virtual void want_completions(bool wanted) noexcept = 0;

  /// True if a poll may find something from this endpoint. For a thread that polls in a loop: this
  /// look costs less than the poll. Any thread.
  virtual bool may_have_received() const noexcept { return true; }
  /// True if the peer of this endpoint waits for this side to release received pieces.
  virtual bool peer_wants_release() const noexcept = 0;
  /// Received bytes not yet given back to the peer.
  virtual uint64_t unreleased() const noexcept = 0;
  /// True if at least this many quarters of the peer's room are occupied because of a few pieces
  /// that nobody reads, while much that came behind them has been read. They should be copied out
  /// of the way before the peer finds no room. Under the lock of the endpoint's lane.
  virtual bool is_held_up(unsigned) const noexcept { return false; }
  /// Called when the last reference to the buffer is gone (RecvBuffer::drop).
  virtual void release(RecvBuffer& buffer) noexcept = 0;

  /// The CPU on which the peer was last seen working, where spinning is of no use; -1: unknown, or
  /// on another host.
  virtual int peer_cpu() const noexcept = 0;
  virtual void publish_cpu(int cpu) noexcept = 0;
  /// Until when threads of the peer do not poll (crowding.hpp), 0 if unknown; the second call
  /// publishes the same for the threads of this process.
  virtual uint64_t peer_crowded_until() const noexcept { return 0; }
  virtual void publish_crowded_until(uint64_t) noexcept {}

  /// The peer wrote something that no correct peer writes, or the device has given the endpoint up:
  /// nothing more will be received.
  virtual bool is_broken() const noexcept = 0;
  /// Called before the last polls, under the node's receive lock: from now on the endpoint confirms
  /// to the peer only what poll_recv() has found or is about to find.
  virtual void stop() noexcept = 0;

  EndpointUser* user = nullptr;  ///< set by the engine when it takes the endpoint into use
  uint32_t lane = 0;             ///< likewise; see lane.hpp
  /// Set by the device: the peer waits for a window. See post_window().
  std::atomic<bool> owes_window{false};
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const noexcept = 0;
  virtual DeviceKind kind() const noexcept = 0;

  /// The most connections that a node may have over this device at a time.
  virtual uint32_t max_connections() const noexcept { return ~uint32_t{0}; }
  /// Creates one half of a new connection; null if there is no memory or no other resource for it
  /// (logged). The manager's thread.
  virtual std::unique_ptr<HalfOpen> begin() noexcept = 0;
  /// Adds an endpoint of this device to the poll list of its lane; remove() takes it out. Both
  /// under the node's receive lock.
  virtual void add(Endpoint& endpoint) = 0;
  virtual void remove(Endpoint& endpoint) noexcept = 0;

  /// What is polled together (engine/progress/lane.hpp), by one thread at a time. Under the lane's
  /// lock.
  struct alignas(64) Lane {
    /// Set by the engine: the number of endpoints in the poll list. A lane with none is not polled.
    uint32_t endpoints = 0;
    /// True if the last poll_recv() found everything that had been posted before it.
    bool found_all = true;
    /// Set by poll_recv() if it has seen an endpoint that is_held_up(); the engine clears it.
    bool held_up = false;
    /// Makes the next poll_recv() look at all endpoints; that poll clears it. Any thread. Stored
    /// with release and cleared with acquire: the poll finds what the thread that asks for it knows
    /// to be there.
    std::atomic<bool> want_all{false};
  };
  Lane lanes[kLanes];
  void want_all() noexcept {
    for (Lane& lane : lanes) lane.want_all.store(true, std::memory_order_release);
  }

  /// True if the device could have used more memory since the last call. Progress thread.
  virtual bool wants_memory() noexcept { return false; }
  /// Takes a little more of the memory that it may have into use. The manager's thread.
  virtual void grow() noexcept {}
  /// Takes up to `completions.size()` receives of endpoints of a lane, in order per endpoint, and
  /// sets `found_all`. It need not look each time at endpoints that have received nothing for long.
  virtual size_t poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept = 0;
  /// Returns after how many polls, with `want_all` set before the first, everything posted before
  /// the first has been found, however fast the peers go on. Under the lane's lock.
  virtual size_t polls_to_drain(uint32_t) const noexcept { return 1; }
  /// True if the device has gone or failed as a whole, and will not work again. Any thread.
  virtual bool is_lost() const noexcept { return false; }

  /// Asks the peers to ring event_fd() for anything new. The caller polls once more before it
  /// sleeps.
  virtual void arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
  virtual bool is_armed() const noexcept = 0;
  /// Readable when a peer has rung, or when the device itself has something to tell.
  virtual int event_fd() const noexcept = 0;
  /// Consumes what made event_fd() readable. Progress thread, or any thread if rings_any_thread().
  virtual void clear_event() noexcept = 0;
  /// True if a sleeping thread may wait for event_fd() itself, in place of the progress thread.
  virtual bool rings_any_thread() const noexcept { return false; }
  /// Makes event_fd() readable, if rings_any_thread(). Any thread.
  virtual void ring() noexcept {}
};

inline void RecvBuffer::drop(uint32_t count) noexcept {
  if (references.fetch_sub(count, std::memory_order_acq_rel) == count) endpoint->release(*this);
}

}  // namespace sidestep::engine

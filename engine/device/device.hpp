#pragma once
/// What the engine asks of a device: the verbs that the msgrc engine uses, and no more.
///
/// A Device is one way to reach nodes (libibverbs, shared memory); an Endpoint is one end of its
/// connection to one node (a reliable connected queue pair, a shared-memory channel). Nothing above
/// this interface knows which device it is on. The words are those of ibv_post_send(3) and
/// ibv_poll_cq(3).
///
/// Threads: post_send() under the connection's post lock; poll_recv() by one thread at a time (the
/// lock of the lane); completed(), release() and the doorbell calls by any thread. No call
/// blocks or throws; none of the data path calls allocates.
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

/// A received piece that stays valid until its last reference is released.
/// The poller gets it with kPolled references and gives back what it does not hand on.
struct RecvBuffer {
  static constexpr uint32_t kPolled = 1U << 24;
  std::atomic<uint32_t> references{0};
  uint32_t length = 0;
  Endpoint* endpoint = nullptr;

  /// Drops `count` references; whoever drops the last returns the buffer to the device.
  /// acq_rel: the reader's last load is before the device lets the memory be overwritten.
  inline void drop(uint32_t count) noexcept;
};

/// A poll asks for at least so many.
inline constexpr size_t kLeastPolled = 128;

/// One completed receive. The payload is contiguous here; a device that scatters into several
/// buffers reports one completion for each, in order, and nothing of another endpoint between them.
struct RecvCompletion {
  Endpoint* endpoint;
  const std::byte* data;
  uint32_t length;
  uint32_t immediate;
  RecvBuffer* buffer;  ///< null when length is 0
  bool more;           ///< the same work request goes on in the next completion
  /// Where it did not come with the bytes: of the one fragment, of FragmentType::data, whose whole
  /// payload they are, and nothing else. It is checked, and valid until the next poll.
  const FragmentHeader* header;
};

/// Whoever has taken an endpoint into use: what a device may call back.
class EndpointUser {
 public:
  /// The endpoint has something to post, or room for it. Leaves that to the next thread that makes
  /// progress. Any thread; any lock may be held.
  virtual void request_post() noexcept = 0;

 protected:
  ~EndpointUser() = default;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// The memory of this direction's ORB, a power of two long and mapped twice in a row.
  virtual std::span<std::byte> orb_memory() noexcept = 0;
  /// Bytes of one work request at most.
  virtual uint32_t max_request() const noexcept = 0;

  /// Bytes of one send that are worth a post of their own: little where posting is cheap, because
  /// the peer then copies the beginning while the end is still being copied here.
  virtual uint32_t post_batch() const noexcept { return 1; }
  /// How many requests post_send() would take now. Under the post lock.
  virtual size_t send_room() noexcept = 0;
  /// Posts the requests in order as one chain, not more of them than send_room() has said, less
  /// those that were posted since: room grows by itself, and only post_window() takes some of it.
  /// Returns how many were taken; fewer when the endpoint has failed.
  virtual size_t post_send(std::span<const SendRequest> chain) noexcept = 0;
  /// Under the post lock, after the last post_send(): where `owes_window` is set, tells the peer by
  /// an empty work request what no other has told it.
  virtual void post_window(uint32_t immediate) noexcept = 0;
  /// Any thread: sees to it that the end of a peer is noticed (is_broken()), even where nothing may
  /// be sent to it.
  virtual void poke() noexcept = 0;
  /// After post_send() and the caller's full barrier: wakes the peer if it is parked. Where an
  /// adapter does that by itself, has_doorbell() is false and nobody need call it.
  virtual void ring_if_parked() noexcept = 0;
  virtual bool has_doorbell() const noexcept { return true; }
  /// Whether who posts can wake the very threads that wait for a stream: nap(), wake_readers().
  virtual bool wakes_readers() const noexcept { return false; }
  /// What a thread sleeps on until something comes for a stream of this side, and the value that it
  /// has to have: while it does, nothing has come that was not posted before this call, which is a
  /// full barrier. Any thread.
  virtual Nap nap(uint32_t) noexcept { return {}; }
  /// Whether the peer has changed the word of such a nap since it had this value. It wakes those
  /// who sleep on it next.
  virtual bool has_rung(uint32_t, uint32_t) const noexcept { return false; }
  /// After post_send() and the caller's full barrier: wakes those threads of the peer that wait for
  /// these streams, which are numbered as there. Any thread.
  virtual void wake_readers(std::span<const uint32_t>) noexcept {}
  virtual void wake_all_readers() noexcept {}
  /// This process ends: what it still has to post may use the room that the device keeps back for
  /// this moment, if it does. Any thread, any number of times.
  virtual void use_reserve() noexcept {}
  /// Everything posted is where the end of this process can't take it back. Asks for what it does
  /// not know, so it is to be called until it is true. Any thread.
  virtual bool is_flushed() noexcept = 0;
  /// This process has said over this endpoint all that it will ever say. A device that can leaves
  /// word of it for peer_has_left(); for the others the manager tells it. Any thread.
  virtual void leave() noexcept {}
  /// Whether the peer, which is known to be gone, has left word that it had said everything.
  virtual bool peer_has_left() const noexcept { return false; }
  /// Everything before this ORB position, which is posted, is where a poll of the peer finds it,
  /// whatever else the peer learns of afterwards, by whatever way. Asks for what it does not know.
  /// Any thread.
  virtual bool has_arrived(uint64_t position) noexcept = 0;
  /// A poll finds all that the peer has posted before it ended an anchor, once that end is known,
  /// even if the peer was killed in between.
  virtual bool is_ordered() const noexcept { return true; }
  /// ORB position before which everything is confirmed: the front of the ring may move there.
  virtual uint64_t completed() noexcept = 0;
  /// Called now and then: finds an endpoint that has stopped working without saying so. Under the
  /// node's receive lock.
  virtual void watch(uint64_t) noexcept {}
  /// Tells the peer that this side waits for confirmations, so that it rings when some arrive.
  virtual void want_completions(bool wanted) noexcept = 0;

  /// A poll may find something from this endpoint: for who polls in a loop, a look that costs less
  /// than the poll. Any thread.
  virtual bool may_have_received() const noexcept { return true; }
  /// The peer of this endpoint waits until this side lets go of received pieces.
  virtual bool peer_wants_release() const noexcept = 0;
  /// Received bytes not yet given back to the peer.
  virtual uint64_t unreleased() const noexcept = 0;
  /// At least so many quarters of the room that the peer has are kept by few pieces, which nobody
  /// reads while much that came behind them has been read: they should be copied out of the way
  /// before the peer finds no room. Under the lock of its lane.
  virtual bool is_held_up(unsigned) const noexcept { return false; }
  /// The last piece's last reference is gone (RecvBuffer::drop).
  virtual void release(RecvBuffer& buffer) noexcept = 0;

  /// CPU on which the peer was last seen working, -1 unknown (other host): spinning there is no
  /// use.
  virtual int peer_cpu() const noexcept = 0;
  virtual void publish_cpu(int cpu) noexcept = 0;
  /// Until when threads of the peer do not poll (crowding.hpp), 0 unknown, and those of ours.
  virtual uint64_t peer_crowded_until() const noexcept { return 0; }
  virtual void publish_crowded_until(uint64_t) noexcept {}

  /// The peer wrote something that no correct peer writes: nothing more will be received.
  virtual bool is_broken() const noexcept = 0;
  /// Before the last polls, under the node's receive lock: from now on nothing is confirmed to the
  /// peer that poll_recv() has not found or is about to find.
  virtual void stop() noexcept = 0;

  EndpointUser* user = nullptr;  ///< set by the engine when it takes the endpoint into use
  uint32_t lane = 0;             ///< the same: lane.hpp
  /// Set by the device: the peer waits for a window. See post_window().
  std::atomic<bool> owes_window{false};
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const noexcept = 0;
  virtual DeviceKind kind() const noexcept = 0;

  /// How many a node may have over this device at a time.
  virtual uint32_t max_connections() const noexcept { return ~uint32_t{0}; }
  /// One half of a new connection; null when there is no memory or no other resource for it
  /// (logged). The manager's thread.
  virtual std::unique_ptr<HalfOpen> begin() noexcept = 0;
  /// Takes an endpoint of this device into the poll list of its lane, or out of it. Under the
  /// node's receive lock.
  virtual void add(Endpoint& endpoint) = 0;
  virtual void remove(Endpoint& endpoint) noexcept = 0;

  /// What is polled together (engine/progress/lane.hpp), by one thread at a time. Under the lane's
  /// lock.
  struct alignas(64) Lane {
    /// Set by the engine: endpoints in the poll list. Without any it is not polled.
    uint32_t endpoints = 0;
    /// The last poll_recv() has found everything that had been posted before it.
    bool found_all = true;
    /// Set by poll_recv() where some endpoint is_held_up(), as far as it has looked; the engine
    /// clears it.
    bool held_up = false;
    /// The next poll_recv() looks at all endpoints, and clears this. Any thread. release, and
    /// acquire where it is cleared: that poll finds what the one who asks for it knows to be there.
    std::atomic<bool> want_all{false};
  };
  Lane lanes[kLanes];
  void want_all() noexcept {
    for (Lane& lane : lanes) lane.want_all.store(true, std::memory_order_release);
  }

  /// Whether it could use more memory, since this was last asked. Progress thread.
  virtual bool wants_memory() noexcept { return false; }
  /// Takes a little more into use of what it may have. The manager's thread.
  virtual void grow() noexcept {}
  /// Takes up to `completions.size()` receives of endpoints of a lane, in order per endpoint, and
  /// sets `found_all`. It need not look at those from which nothing has come for long each time.
  virtual size_t poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept = 0;
  /// After so many polls, with `want_all` before the first, what had been posted before it has been
  /// found, however fast the peers go on. Under the lane's lock.
  virtual size_t polls_to_drain(uint32_t) const noexcept { return 1; }
  /// It has gone or failed as a whole, and will not work again. Any thread.
  virtual bool is_lost() const noexcept { return false; }

  /// Asks the peers to ring event_fd() for anything new. The caller polls once more before it
  /// sleeps.
  virtual void arm() noexcept = 0;
  virtual void disarm() noexcept = 0;
  virtual bool is_armed() const noexcept = 0;
  /// Readable when a peer has rung, or when the device itself has something to tell.
  virtual int event_fd() const noexcept = 0;
  /// Takes what made it readable. Progress thread, or any where rings_any_thread().
  virtual void clear_event() noexcept = 0;
  /// A thread that sleeps may wait for event_fd() itself, in the place of the progress thread.
  virtual bool rings_any_thread() const noexcept { return false; }
  /// Makes event_fd() readable, where rings_any_thread(). Any thread.
  virtual void ring() noexcept {}
};

inline void RecvBuffer::drop(uint32_t count) noexcept {
  if (references.fetch_sub(count, std::memory_order_acq_rel) == count) endpoint->release(*this);
}

}  // namespace sidestep::engine

#pragma once
/// A stream: two directions of bytes over an anchor (a kernel TCP connection), each on a carrier
/// that can change at any byte.
///
/// Phases: undecided (on the kernel, bytes are counted, a move up is possible) -> bound (joined to
/// the other end's stream over a connection; each direction is on the kernel or the engine) ->
/// kernel (for good; nothing of the engine is involved any more). A stream may skip `bound`. A
/// stream whose connection made way for another, or failed between hosts, goes from kernel back to
/// undecided: reopening.cpp.
///
/// Protocol of one direction, sender S and receiver R:
///
///   R: receive_ready "my reads wait for both carriers from now on"
///   S: switch_up(N)  S has handed N bytes in all to the kernel; data fragments follow
///   R: switch_ack    R's readers know N. S does not move down again before this, so that no byte
///                    behind the engine's is on the anchor while R might read it too early
///   S: switch_down   what follows is on the anchor; S needs a new receive_ready to move up again.
///                    S answers each with one switch_down, whether it has moved up or will not
///   S: fin           after the last byte, whichever carrier the direction is on. The anchor ends
///                    too, once R has read everything: ending.cpp
///
/// R is not ready before its program has read through the shim, and S sends no switch_up before its
/// program has written through it. A program that uses its sockets in ways that the shim can't see
/// (io_uring, raw system calls) thus finds its bytes on the anchor, and its peer hears it there.
/// Both also wait until the stream is cleared: the program has waited for it where the shim sees
/// that, or has no means of waiting elsewhere. Meanwhile the accepting end binds the stream with a
/// `join`.
///
/// Unread bytes are bounded by the receiver's window, which is memory that the receiver has, and by
/// the buffer sizes that the programs have set: buffers.cpp.
///
/// A sender that is asked to come down so that another process can have the descriptor also takes
/// back the unread bytes of the engine's share and sends them over the anchor: unread_return.cpp.
///
/// When the connection fails while both ends live, both directions go down at the byte that the
/// receiving end names. The sender sends what lies beyond it again, over the anchor: recovery.hpp.
///
/// Each direction is an object of its own with a lock of its own: direction.hpp, sender.hpp,
/// receiver.hpp.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/reason.hpp"
#include "engine/base/tcp_state.hpp"
#include "engine/connection/bound_stream.hpp"
#include "engine/stream/anchor_keep_alive.hpp"
#include "engine/stream/clearance.hpp"
#include "engine/stream/receiver.hpp"
#include "engine/stream/sender.hpp"
#include "engine/stream/side_guard.hpp"
#include "engine/stream/stream_errors.hpp"
#include "engine/stream/watch.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class Connection;
class Directory;
class StreamServices;
struct StreamReport;

enum class Phase : uint8_t { undecided, bound, kernel };

class Stream : public BoundStream {
 public:
  /// What is known of a stream when its socket is taken in.
  struct Opening {
    StreamServices& services;
    Tuple tuple;
    int anchor;
    bool accepted;    ///< this end asks who has the other one
    bool in_use;      ///< note_reading() and note_writing() will not be called
    uint64_t window;  ///< bytes that may lie here unread (SIDESTEP_WINDOW_SIZE)
    uint64_t now;     ///< nanoseconds of now_ns()
  };
  explicit Stream(const Opening& opening) noexcept;
  Stream(const Stream&) = delete;
  /// Makes a stream without a node, on the kernel for good, as a child of fork() has it. The caller
  /// owns it. `torn`: it is lost (ECONNRESET), because it was not brought to the kernel.
  static Stream* make_detached(const Tuple& tuple, int anchor, bool torn) noexcept;
  bool is_detached() const noexcept { return services_ == nullptr; }

  // --- its parts ---

  Sender& sender() noexcept { return sender_; }
  const Sender& sender() const noexcept { return sender_; }
  Receiver& receiver() noexcept { return receiver_; }
  const Receiver& receiver() const noexcept { return receiver_; }
  Clearance& clearance() noexcept { return clearance_; }
  const Clearance& clearance() const noexcept { return clearance_; }
  StreamErrors& errors() noexcept { return errors_; }
  AnchorKeepAlive& keep_alive() noexcept { return keep_alive_; }
  WatchList& watches() noexcept { return watches_; }
  /// Not for a stream that is_detached().
  StreamServices& services() noexcept { return *services_; }

  // --- what it is; any thread ---

  /// Ids on this node; valid while the stream is in the table.
  uint32_t id() const noexcept { return id_; }
  uint32_t generation() const noexcept { return generation_; }
  const Tuple& tuple() const noexcept { return tuple_; }
  int anchor() const noexcept { return anchor_.load(std::memory_order_relaxed); }
  /// Called when the owner's anchor has another number now, with the locks of both directions held.
  void set_anchor(int fd) noexcept { anchor_.store(fd, std::memory_order_relaxed); }
  /// The caller holds a lane's lock or a reference to the socket. Does without this stream's locks,
  /// which a busy program hardly ever releases.
  TcpState anchor_state() const noexcept;
  /// True if this end asks who has the other one.
  bool is_accepted() const noexcept { return accepted_; }
  /// Nanoseconds of now_ns().
  uint64_t opened_at() const noexcept { return opened_at_; }
  /// acquire pairs with the release in set_phase(): `connection()` is set when this says bound.
  Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
  bool is_bound() const noexcept { return phase() == Phase::bound; }
  /// seq_cst: for what is set before the phase is looked at, and looked at after it is set.
  bool is_decided() const noexcept {
    return phase_.load(std::memory_order_seq_cst) != Phase::undecided;
  }
  /// True if the program has read or written through the shim, or need not be seen to do so.
  bool is_used() const noexcept {
    return sender_.used_.load(std::memory_order_relaxed) ||
           receiver_.used_.load(std::memory_order_relaxed);
  }
  /// To be used under a lock of one of the directions or a lane's lock: a stream whose connection
  /// makes way for another, or fails between hosts, drops it (reopening.cpp). A stream that
  /// shares_host() never does so while it lives.
  Connection* connection() const noexcept { return connection_.load(std::memory_order_relaxed); }
  /// True if the peer is on the same host, where its connection does not make way.
  bool shares_host() const noexcept { return shares_host_.load(std::memory_order_relaxed); }
  /// Why the stream is (still) on the kernel; `none` if nothing keeps it there.
  Reason reason() const noexcept { return reason_.load(std::memory_order_relaxed); }
  /// True if the descriptor is gone. The stream stays until the peer has ended, too. Under a lane's
  /// lock.
  bool is_closed() const noexcept { return closed_; }
  bool is_aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  // --- waiting; any thread ---

  /// Changes sequence() of the directions that are concerned and, after a full barrier, tells the
  /// watchers.
  void signal(uint32_t events) noexcept {
    // seq_cst: the barrier between the reported change and the look at the watchers.
    if ((events & kReadable) != 0) receiver_.sequence_.fetch_add(1, std::memory_order_seq_cst);
    if ((events & kWritable) != 0) sender_.sequence_.fetch_add(1, std::memory_order_seq_cst);
    if (!watches_.empty()) watches_.notify(*this, events);
  }

  // --- leaving the engine; any thread ---

  /// Asks both ends to bring the stream down to the kernel, for good if there is a `reason`.
  /// `hold`: also asks the peer to send nothing there before return_unread_locked(), if it can.
  void request_down(Reason reason, bool hold = false) noexcept;
  /// The two halves of request_down(). Between them, an end that has ended its direction may hear
  /// that its peer asks it to hold as well. If it came down before that, it could not hold.
  void ask_peer_down(Reason reason, bool hold) noexcept;
  void go_down() noexcept;
  /// True if both directions are on the kernel, nothing will come over the engine, and nothing that
  /// came over it is still to be read.
  bool is_down() noexcept;
  /// Like is_down(), but bytes of the engine may still wait to be read.
  bool has_left() const noexcept {
    return sender_.carrier() == Carrier::kernel && receiver_.is_complete() &&
           (!sender_.has_replay() || sender_.awaits_return()) && !receiver_.waits_for_hold();
  }
  /// True if the stream is on the kernel, will never be anywhere else, and the peer cannot ask to
  /// hold it there. unread_return.cpp explains the order of the last two loads.
  [[gnu::always_inline]] bool is_kernels_for_good() const noexcept {
    // Loaded first: a thread that sees that start_over() has dropped the connection also sees the
    // phase that start_over() set before.
    const bool has_connection = connection_.load(std::memory_order_acquire) != nullptr;
    return phase() == Phase::kernel && !is_aborted() &&
           (!has_connection ||
            (for_good_.load(std::memory_order_relaxed) &&
             (sender_.holds_no_more_.load(std::memory_order_seq_cst) || !shares_host()))) &&
           !sender_.has_replay();
  }
  /// Tells the peer that what it has sent or will send is lost (close with unread data).
  void reset() noexcept;

 private:
  Stream() noexcept;

  // The two directions; and those who show one part of what is private here to those whom it
  // concerns.
  friend class Direction;
  friend class Sender;
  friend class Receiver;
  friend class AnchorKeepAlive;
  friend class StreamTable;
  friend class StreamInput;
  friend class UndecidedStream;
  friend class AnchorWatch;
  friend class ClosedStream;
  friend class DeferredStream;
  friend class StreamFailover;
  friend class StreamReopening;

  /// Tries to do what is deferred. False if something is left (lock held or ring full).
  bool run_deferred() noexcept;
  bool send_control(FragmentType type, const void* payload, uint32_t length) noexcept;
  bool send_value(FragmentType type, uint64_t value) noexcept;

  void bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept;
  /// seq_cst for is_decided(), besides the release that phase() pairs with.
  void set_phase(Phase phase) noexcept {
    phase_.store(phase, std::memory_order_seq_cst);
    if (phase != Phase::undecided) unlist();
  }
  /// Enters a stream that a program has connected in the directory, until it is decided or
  /// unlist()ed. Any thread that keeps the stream from being freed.
  void list(Directory& directory) noexcept;
  void unlist() noexcept {
    // seq_cst: pairs with list(), which looks at the phase afterwards.
    if (listed_in_.load(std::memory_order_seq_cst) != nullptr) unlist_now();
  }
  void unlist_now() noexcept;
  void set_reason(Reason reason) noexcept { reason_.store(reason, std::memory_order_relaxed); }
  bool is_down_locked() const noexcept {
    return sender_.carrier() == Carrier::kernel && !sender_.has_replay() &&
           receiver_.state() == ReceiverState::kernel;
  }
  /// The other side has ended, or its node has gone: readers get `error` after the data.
  void abort(int error) noexcept;
  /// True if all that is left of the engine's share are bytes to be sent over the anchor.
  bool has_only_replay() const noexcept {
    return sender_.state() == SenderState::replaying && receiver_.state() == ReceiverState::kernel;
  }
  // recovery.cpp
  /// Called when the connection has failed and its ring is closed. Returns what this end has sent
  /// and received.
  StreamReport begin_failover() noexcept;
  /// The same for a stream that is on the kernel for good. Its peer may not be: what came before
  /// the move may be unread there.
  StreamReport report_settled() const noexcept;
  /// Whether both directions can go on from where `theirs` says they are.
  bool can_fail_over(const StreamReport& theirs) const noexcept;
  /// `unconfirmed`: the last engine bytes that this end sent, from where the peer's count ends.
  void fail_over(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept;
  /// For a peer process that has ended: true if nothing that it sent to this end over the engine is
  /// missing. `left`: PeerProcess::left.
  bool has_all_of_gone_peer(bool left) const noexcept;
  /// Leaves both directions to the anchor from here on. `ended`: the peer sends nothing more.
  /// `unconfirmed`: as in fail_over().
  void go_on_alone(bool ended, std::vector<std::byte> unconfirmed) noexcept;
  /// Dispatcher: the peer's stream is no more, and only the anchor is left of it.
  void be_left_alone(Reason reason) noexcept;
  /// For a stream that needs nothing more of its connection, which is gone: it ends without a mark
  /// over the engine.
  void forget_engine() noexcept;
  /// Leaves the connection behind. True: the stream may be joined to another one. False: it never
  /// may, or not for now. Nothing: it is in use at this moment. Under the node's receive lock.
  std::optional<bool> start_over() noexcept;
  /// True if neither direction has been on the engine over this connection, as far as this side
  /// knows.
  bool never_used_engine() const noexcept;

  StreamServices* services_ = nullptr;
  uint32_t id_ = 0;
  uint32_t generation_ = 0;
  uint32_t peer_stream_ = 0;
  uint32_t peer_generation_ = 0;
  // Set under the lock of its lane; reset to null under the node's receive lock and the locks of
  // both directions.
  std::atomic<Connection*> connection_{nullptr};
  std::atomic<bool> shares_host_{false};
  Tuple tuple_;
  std::atomic<int> anchor_{-1};
  std::atomic<Phase> phase_{Phase::undecided};
  std::atomic<Reason> reason_{Reason::none};
  std::atomic<bool> aborted_{false};
  StreamErrors errors_;
  WatchList watches_;
  // Set by the application's side, read by the manager.
  std::atomic<bool> stay_down_{false};
  std::atomic<bool> for_good_{false};  // and because the program or the peer wants it
  bool accepted_ = false;              // this end asks who has the other one
  /// Under the node's receive lock: reopening.cpp.
  struct Reopening {
    bool expected = false;  // it is in the list of NodeStreams
    unsigned refusals = 0;
    uint64_t bound_at = 0;
    uint64_t wait = 0;     // nanoseconds
    uint64_t at = 0;       // not before
    uint64_t traffic = 0;  // bytes over the kernel when it left the engine; not without more
  } reopening_;
  bool closed_ = false;  // the descriptor is gone; the stream stays until the peer has ended too
  bool retry_listed_ = false;  // under the node's retry lock
  /// The peer that may bind this stream, because it was told that this end is here. Under the
  /// node's receive lock.
  struct Claim {
    uint32_t peer = 0;        // its number; 0: nobody
    uint32_t generation = 0;  // of the peer's stream
    uint64_t since = 0;
  } claim_;
  std::atomic<Directory*> listed_in_{nullptr};
  uint64_t opened_at_ = 0;  // nanoseconds of now_ns()
  // Progress code, under the node's receive lock: the anchor has ended and the engine has not.
  bool suspect_ = false;
  uint64_t suspect_since_ = 0;
  uint64_t probe_at_ = 0;
  uint64_t probe_wait_ = 0;
  bool anchor_failed_ = false;   // the anchor has an error, not only an end
  bool probe_answered_ = false;  // dispatcher: what the peer sent before the answer is here
  bool failed_over_ = false;     // manager, under the node's receive lock
  Clearance clearance_;
  AnchorKeepAlive keep_alive_;

  Sender sender_;
  Receiver receiver_;
};

inline bool Receiver::may_get_from_engine() const noexcept {
  return stream_.is_bound() && is_receive_ready();
}

}  // namespace sidestep::engine

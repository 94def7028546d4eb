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
///   R: go            "my reads wait for both carriers from now on"
///   S: switch_up(N)  S has handed N bytes in all to the kernel; data fragments follow
///   R: switch_ack    R's readers know N. S does not move down again before this, so that no byte
///                    behind the engine's is on the anchor while R might read it too early
///   S: switch_down   what follows is on the anchor; S needs a new go to move up again. S answers
///                    each go with one switch_down, whether it has moved up or will not
///   S: fin           after the last byte, whichever carrier the direction is on. The anchor ends
///                    too, once R has read everything: ending.cpp
///
/// R sends no go before its program has read through the shim, and S sends no switch_up before its
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
/// back the unread bytes of the engine's share and sends them over the anchor: hand_back.cpp.
///
/// When the connection fails while both ends live, both directions go down at the byte that the
/// receiving end names. The sender sends what lies beyond it again, over the anchor: recovery.hpp.
///
/// Locks: send_lock_ covers the sending side, recv_lock_ the reading side. Each is held for one
/// non-blocking step, never while waiting. A thread that has to send a fragment but cannot take the
/// lock, or finds the ring full, leaves it in deferred_. Whoever unlocks looks there (unlock is a
/// full barrier), and the progress code tries again.
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/reason.hpp"
#include "engine/base/tcp_state.hpp"
#include "engine/connection/bound_stream.hpp"
#include "engine/stream/segment_queue.hpp"
#include "engine/stream/watch.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class Connection;
class Directory;
class StreamServices;
struct StreamReport;

enum class Carrier : uint8_t { kernel, engine };
enum class Phase : uint8_t { undecided, bound, kernel };

/// Buffer sizes that a program has set (SO_SNDBUF, SO_RCVBUF), as the kernel reports them; 0: none.
struct alignas(8) BufferSizes {  // for atomic access by a single instruction
  uint32_t send = 0;
  uint32_t receive = 0;
  bool operator==(const BufferSizes&) const = default;
};

/// What a reader finds next.
struct RxHead {
  enum class Kind : uint8_t {
    kernel,  ///< read the anchor, at most `limit` bytes (0: no limit)
    data,    ///< `data`, `limit` bytes
    empty,   ///< the engine carries the direction and nothing is there
    end,     ///< end of file
    error,   ///< `error` is an errno
  } kind;
  bool switch_pending =
      false;  ///< kernel: more follows on the engine, so end of file here is a loss
  int error = 0;
  uint64_t limit = 0;
  const std::byte* data = nullptr;
};

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

  // --- life; called by the owner of the descriptor (the shim, the benchmark) through NodeStreams

  /// Ids on this node; valid while the stream is in the table.
  uint32_t id() const noexcept { return id_; }
  uint32_t generation() const noexcept { return generation_; }
  const Tuple& tuple() const noexcept { return tuple_; }
  int anchor() const noexcept { return anchor_.load(std::memory_order_relaxed); }
  /// acquire pairs with the release in set_phase(): `connection()` is set when this says bound.
  Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
  bool is_bound() const noexcept { return phase() == Phase::bound; }
  /// True if this end asks who has the other one.
  bool is_accepted() const noexcept { return accepted_; }
  /// Nanoseconds of now_ns().
  uint64_t opened_at() const noexcept { return opened_at_; }
  /// True if the descriptor is gone. The stream stays until the peer has ended, too. Under a lane's
  /// lock.
  bool is_closed() const noexcept { return closed_; }
  /// True if the stream is on the kernel, will never be anywhere else, and the peer cannot ask to
  /// hold it there. Any thread. hand_back.cpp explains the order of the last two loads.
  [[gnu::always_inline]] bool is_kernels_for_good() const noexcept {
    // Loaded first: a thread that sees that start_over() has dropped the connection also sees the
    // phase that start_over() set before.
    const bool has_connection = connection_.load(std::memory_order_acquire) != nullptr;
    return phase() == Phase::kernel && !is_dead() &&
           (!has_connection ||
            (for_good_.load(std::memory_order_relaxed) &&
             (holds_no_more_.load(std::memory_order_seq_cst) || !shares_host()))) &&
           !has_replay();
  }
  /// To be used under one of this stream's locks or a lane's lock: a stream whose connection makes
  /// way for another, or fails between hosts, drops it (reopening.cpp). A stream that shares_host()
  /// never does so while it lives.
  Connection* connection() const noexcept { return connection_.load(std::memory_order_relaxed); }
  /// True if the peer is on the same host, where its connection does not make way.
  bool shares_host() const noexcept { return shares_host_.load(std::memory_order_relaxed); }
  /// Why the stream is (still) on the kernel; `none` if nothing keeps it there.
  Reason reason() const noexcept { return reason_.load(std::memory_order_relaxed); }

  WatchList& watches() noexcept { return watches_; }
  /// Numbers that change with everything that may end a wait for reading or writing. A thread takes
  /// the number, tries, and waits until the number differs: it misses nothing that happens after
  /// its try.
  uint32_t rx_sequence() const noexcept { return rx_sequence_.load(std::memory_order_acquire); }
  uint32_t tx_sequence() const noexcept { return tx_sequence_.load(std::memory_order_acquire); }
  /// Changes the numbers and, after a full barrier, tells the watchers.
  void signal(uint32_t events) noexcept {
    // seq_cst: the barrier between the reported change and the look at the watchers.
    if ((events & kReadable) != 0) rx_sequence_.fetch_add(1, std::memory_order_seq_cst);
    if ((events & kWritable) != 0) tx_sequence_.fetch_add(1, std::memory_order_seq_cst);
    if (!watches_.empty()) watches_.notify(*this, events);
  }

  // --- sending side; the caller holds send_lock() ---

  Mutex& send_lock() noexcept { return send_lock_; }
  /// Unlocks, then does what others have deferred.
  [[gnu::always_inline]] void unlock_send() noexcept {
    send_lock_.unlock();
    // relaxed: unlock() was a full barrier, and so is the fetch_or in defer() before its try_lock.
    if ((deferred_.load(std::memory_order_relaxed) & kSending) != 0) run_deferred();
  }
  Carrier tx_carrier() const noexcept { return tx_carrier_.load(std::memory_order_relaxed); }
  void count_kernel_sent(uint64_t bytes) noexcept {
    // A plain addition under the lock; atomic for threads that only read it (status).
    tx_kernel_.store(tx_kernel() + bytes, std::memory_order_relaxed);
  }
  /// Called when the program writes through the shim. Needs no lock; one call is enough.
  void note_writing() noexcept {
    if (!tx_used_.load(std::memory_order_relaxed)) use(tx_used_, kSwitchUp);
  }
  /// Any thread. True if note_writing() or note_reading() was called, or need not be.
  bool is_used() const noexcept {
    return tx_used_.load(std::memory_order_relaxed) || rx_used_.load(std::memory_order_relaxed);
  }
  /// Any thread. Called when the program has waited for the stream, or registered it, through the
  /// shim.
  void note_waiting() noexcept {
    if (seen_waiting_.load(std::memory_order_relaxed)) return;
    // Either use() sees this, or clear() sees what use() wants.
    seen_waiting_.store(true, std::memory_order_seq_cst);
    clear();
  }
  /// True if the stream may have moved because the program had nothing else to wait with.
  bool is_presumed_seen() const noexcept {
    return cleared_.load(std::memory_order_seq_cst) &&
           !seen_waiting_.load(std::memory_order_relaxed);
  }
  /// True if the stream has been used, but not (yet) cleared.
  bool is_held() const noexcept {
    return wanted_use_.load(std::memory_order_relaxed) != 0 &&
           !cleared_.load(std::memory_order_relaxed);
  }
  /// Any thread. Clears the stream, and does what use() has been called for in the meantime.
  void clear() noexcept;
  /// Set by the shim, once. Tells whether the program may wait in ways that the shim does not see;
  /// returns nothing if the shim can't tell now. The call is slow; the manager makes it. Null if
  /// there is no such program.
  static std::atomic<std::optional<bool> (*)() noexcept> may_wait_unseen;
  /// Set by the shim, for good: the program does wait that way. seq_cst: either use() sees it, or
  /// the thread that set it finds a stream that is_presumed_seen().
  static std::atomic<bool> waits_unseen;
  /// Called before anything is sent over the anchor: on return, the peer can find where the
  /// direction has moved there.
  void before_anchor_locked() noexcept {
    if (moved_down_at_ != 0) [[unlikely]]
      wait_for_move_locked();
  }
  /// Takes as many bytes as credit and ring allow now, from `offset` of the vector on. The caller
  /// has touched that memory (user_copy.hpp); where it is gone again, fewer bytes are taken. On
  /// return, everything that was taken has been posted.
  size_t send_engine_locked(const iovec* vector, int count, size_t offset, size_t length) noexcept;
  /// The same where some bytes may have to wait for more (cork.cpp): if holds_back(), or `more`.
  size_t send_held_locked(const iovec* vector, int count, size_t offset, size_t length,
                          bool more) noexcept;
  bool holds_back() const noexcept { return holds_back_.load(std::memory_order_relaxed); }
  /// How many bytes the peer has room for just now, as far as can be seen without the lock.
  uint64_t may_send() const noexcept { return tx_room(tx_engine()); }
  /// Ends the direction. True if the end mark is where the peer finds it before the anchor's end
  /// (or no mark is needed); otherwise the anchor must stay open until fin_sent().
  bool finish_locked() noexcept;
  /// Called after finish_locked() returned true: the caller closes the anchor, and nothing that is
  /// missing could come over it.
  void closes_anchor_locked() noexcept { shuts_anchor_ = false; }
  /// True if the direction has been ended: what the program sent now would come behind the end.
  bool has_ended_locked() const noexcept { return tx_fin_; }
  /// Called after finish_locked(). True: the caller ends the anchor's direction. False: the stream
  /// does so as soon as that may end.
  bool may_shut_anchor_locked() noexcept;
  /// Whether bytes must go out over the anchor before any others (recovery.hpp).
  bool has_replay() const noexcept { return has_replay_.load(std::memory_order_seq_cst); }
  /// Sends as many of these bytes as the anchor takes now. True if none are left.
  bool flush_replay_locked() noexcept;
  /// While earlier bytes still have to go out over the anchor, after the connection has failed or
  /// until bytes come back from the peer: takes a
  /// first few bytes, once, to be sent over the anchor behind those. A program that was told that
  /// it can write must not be told otherwise by its next call: the kernel would not do that.
  size_t keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                size_t length) noexcept;
  /// True while the peer may hand bytes back before the anchor may be used (hand_back.cpp).
  bool awaits_hand_back() const noexcept { return awaits_back_.load(std::memory_order_acquire); }
  /// An unused socket is writable, whatever other streams have in the ring: it was writable when it
  /// was connected, and programs rely on that (the JDK's finishConnect).
  bool has_sent_nothing() const noexcept {
    return tx_engine_.load(std::memory_order_relaxed) == 0 && tx_kernel() == 0;
  }
  bool fin_sent() const noexcept { return fin_sent_.load(std::memory_order_acquire); }

  // --- receiving side; the caller holds recv_lock() ---

  Mutex& recv_lock() noexcept { return recv_lock_; }
  [[gnu::always_inline]] void unlock_recv() noexcept {
    recv_lock_.unlock();
    if ((deferred_.load(std::memory_order_relaxed) & kReceiving) != 0) run_deferred();
  }
  Carrier rx_carrier() const noexcept { return rx_carrier_.load(std::memory_order_relaxed); }
  RxHead rx_head_locked() noexcept;
  /// As a rule the bytes that rx_head_locked() would show; none where it would show anything else.
  std::span<const std::byte> rx_data_locked() noexcept {
    if (rx_carrier() != Carrier::engine) return {};
    const Segment* const segment = queue_.front();
    if (segment == nullptr || segment->kind != SegmentKind::data) return {};
    return {segment->data, segment->length};
  }
  /// Called when `bytes` of rx_head_locked()'s data have been read.
  [[gnu::always_inline]] void consume_locked(uint64_t bytes) noexcept {
    Segment& segment = *queue_.front();
    segment.data += bytes;
    segment.length -= static_cast<uint32_t>(bytes);
    if (segment.length == 0) {
      RecvBuffer* const buffer = segment.buffer;
      queue_.pop();
      if (buffer != nullptr) buffer->drop(1);
    }
    const uint64_t read = rx_engine() + bytes;
    rx_engine_.store(read, std::memory_order_relaxed);
    if (tells_end_ && rx_queued() == 0) [[unlikely]]
      take_end_locked();
    if (read + window_ - rx_credit_.load(std::memory_order_relaxed) >=
        credit_step_.load(std::memory_order_relaxed))
      give_credit_locked();
  }
  /// Called when the error that rx_head_locked() shows has been given to the program: from now on
  /// that function shows the end.
  void clear_error_locked() noexcept;
  void count_kernel_received(uint64_t bytes) noexcept {
    rx_kernel_.store(rx_kernel() + bytes, std::memory_order_relaxed);
  }
  /// Visits unread engine data in order, for MSG_PEEK: visit(const std::byte*, size_t) -> go on?
  /// Starts behind a move up if that comes first. True if it came to a move down.
  template <typename Visit>
  bool peek_locked(Visit visit) noexcept {
    bool moves_down = false;
    queue_.for_each([&](Segment& segment) {
      moves_down = segment.kind == SegmentKind::switch_down;
      return segment.kind == SegmentKind::switch_up ||
             (segment.kind == SegmentKind::data && visit(segment.data, size_t{segment.length}));
    });
    return moves_down;
  }
  /// If the peer holds its direction, which is down on the kernel: how many bytes it has sent there
  /// in all.
  std::optional<uint64_t> held_at_locked() const noexcept;
  /// Hands everything that was read from this direction and not given to the program back to the
  /// peer that holds it, so that it comes once more over the anchor. False: too much, or no room;
  /// the peer goes on without it.
  bool hand_back_locked(std::span<const std::byte> unread) noexcept;
  /// Called when nothing will be handed back any more.
  void end_hold_locked() noexcept;
  /// The number of kernel bytes that come before the last queued engine bytes; 0 if none do.
  /// `moved_down`: whether what the kernel has beyond them comes behind the queue.
  uint64_t kernel_bytes_before_locked(bool& moved_down) noexcept;
  /// Called when the program reads through the shim. Needs no lock; one call is enough.
  void note_reading() noexcept {
    if (!rx_used_.load(std::memory_order_relaxed)) use(rx_used_, kGo);
  }
  /// Called when the program closes: stops asking the peer to come back to the engine. With room
  /// here, the peer would send where the kernel's answer is a reset. The caller holds the lock.
  void stop_inviting_locked() noexcept { invites_ = false; }
  /// Called when the program is about to shut the anchor down for reading.
  void shut_reading() noexcept { read_shut_.store(true, std::memory_order_relaxed); }
  /// Copies what refers to receive buffers into private memory. Returns the number of bytes.
  uint64_t spill_locked() noexcept { return queue_.spill(); }

  // --- any thread ---

  /// The number of engine bytes that have arrived and are unread.
  uint64_t rx_queued() const noexcept {
    return rx_arrived_.load(std::memory_order_acquire) - rx_engine_.load(std::memory_order_relaxed);
  }
  /// Whether a send over the engine would take a byte now.
  bool can_send_engine() noexcept;
  /// Like can_send_engine(); if the ring has no room, asks to be told when it has.
  bool can_send_or_wants_space() noexcept;
  /// Called when the program has set or cleared TCP_CORK.
  void note_cork() noexcept;
  /// Sends what waits for more.
  void push() noexcept;
  /// Called when the program has set the size of a buffer of the anchor.
  void note_buffers() noexcept;
  /// SO_RCVLOWAT. From the first go until the stream is on the kernel for good, the anchor itself
  /// has 1: what lies there may be less than the mark, but enough together with what came over the
  /// engine, and the kernel would report nothing.
  int low_water() const noexcept { return low_water_.load(std::memory_order_relaxed); }
  /// Called when the program has set it, though not to more than the engine serves.
  void note_low_water(int bytes) noexcept;
  /// True for options that keepalive.cpp sets where the program has not. The program's own values
  /// are set under recv_lock(), after end_keep_alive_locked().
  static bool concerns_keep_alive(int level, int name) noexcept;
  void end_keep_alive_locked() noexcept;
  /// Has the kernel keep the anchor alive, which carries nothing. Under recv_lock().
  void keep_alive_locked(int seconds) noexcept;
  /// The value that the program has set, if the kernel has something else.
  std::optional<int> hidden_by_keep_alive(int level, int name) noexcept;
  /// At least this many bytes may lie here unread before the peer has to wait for credit.
  uint64_t most_unread() const noexcept { return 3 * credit_step_.load(std::memory_order_relaxed); }
  /// True if there is an error that the next call has to report, once, as SO_ERROR does.
  bool has_error() const noexcept { return error_.load(std::memory_order_relaxed) != 0; }
  /// Whether an end of the anchor that a reader finds now may hide a loss. The peer was free to go
  /// on over the engine, and where the device is not ordered with the anchor, the fragment that
  /// moved the stream may be under way, or have died with the peer. NodeStreams::question_end()
  /// finds out.
  bool doubts_end() const noexcept;
  /// True if such an end was found and is being looked into; nothing more comes from the anchor.
  bool end_is_questioned() const noexcept {
    return end_questioned_.load(std::memory_order_relaxed);
  }
  /// True if the stream is lost and the program has not been told: the end of the anchor must be
  /// shown as that loss. Behind the peer's own end nothing is missing.
  bool end_is_lost() const noexcept {
    if (!is_dead() || peer_has_finished()) return false;
    const int error = error_.load(std::memory_order_relaxed);
    return error != 0 && error != EPIPE;
  }
  bool peer_has_finished() const noexcept { return peer_fin_.load(std::memory_order_acquire); }
  /// The caller holds a lane's lock or a reference to the socket. Does without this stream's locks,
  /// which a busy program hardly ever releases.
  TcpState anchor_state() const noexcept;
  /// Called when the owner's anchor has another number now, with the send and receive locks held.
  void set_anchor(int fd) noexcept { anchor_.store(fd, std::memory_order_relaxed); }
  int take_error() noexcept { return error_.exchange(0, std::memory_order_seq_cst); }
  /// Called when the program has been told of an error. As in the kernel it is told once, although
  /// the anchor and the engine may both have an error. Any thread.
  void error_told() noexcept {
    error_told_.store(true, std::memory_order_seq_cst);  // pairs with die()
    take_error();
  }
  bool was_error_told() const noexcept { return error_told_.load(std::memory_order_relaxed); }
  bool is_dead() const noexcept { return dead_.load(std::memory_order_acquire); }
  /// Tells the peer that what it has sent or will send is lost (close with unread data).
  void reset() noexcept;
  /// Makes a stream without a node, on the kernel for good, as a child of fork() has it. The caller
  /// owns it. `torn`: it is lost (ECONNRESET), because it was not brought to the kernel.
  static Stream* make_detached(const Tuple& tuple, int anchor, bool torn) noexcept;
  bool is_detached() const noexcept { return services_ == nullptr; }
  /// Asks both ends to bring the stream down to the kernel, for good if there is a `reason`.
  /// `hold`: also asks the peer to send nothing there before hand_back_locked(), if it can.
  void request_down(Reason reason, bool hold = false) noexcept;
  /// The two halves of request_down(). Between them, an end that has ended its direction, and whose
  /// peer is asked to hold as well, may hear of the hold: brought down before that, it could not
  /// hold.
  void ask_peer_down(Reason reason, bool hold) noexcept;
  void go_down() noexcept;
  /// True if request_down() has asked the peer to hold and nothing has ended that.
  bool wants_hold() const noexcept { return wants_hold_.load(std::memory_order_relaxed); }
  /// True if both directions are on the kernel, nothing will come over the engine, and nothing that
  /// came over it is still to be read.
  bool is_down() noexcept;
  /// Like is_down(), but bytes of the engine may still wait to be read.
  bool has_left() const noexcept {
    return tx_carrier() == Carrier::kernel && rx_complete() &&
           (!has_replay() || awaits_hand_back()) && !waits_for_hold();
  }
  /// Whether anything may still come over the engine for this stream that is not in its queue yet.
  bool door_is_open() const noexcept { return rx_door_.load(std::memory_order_acquire); }
  /// Whether a poll may find something for a reader. Without a lock.
  bool may_get_from_engine() const noexcept {
    return is_bound() && (rx_carrier() == Carrier::engine || door_is_open());
  }
  /// True if the queue holds every byte that the engine will bring before another go.
  bool rx_complete() const noexcept {
    // acquire: a thread that sees a mark counted sees it queued. The answers are loaded first: a go
    // is counted before it is sent, so no go that is under way is missed.
    const uint32_t answered = rx_downs_.load(std::memory_order_acquire);
    return rx_ended_.load(std::memory_order_acquire) ||
           answered >= rx_goes_.load(std::memory_order_acquire);
  }

  uint64_t tx_engine() const noexcept { return tx_engine_.load(std::memory_order_relaxed); }
  uint64_t rx_engine() const noexcept { return rx_engine_.load(std::memory_order_relaxed); }
  uint64_t tx_kernel() const noexcept { return tx_kernel_.load(std::memory_order_relaxed); }
  uint64_t rx_kernel() const noexcept { return rx_kernel_.load(std::memory_order_relaxed); }

 private:
  Stream() = default;

  // Each of these shows one part of what is private here to those whom it concerns.
  friend class StreamTable;
  friend class StreamInput;
  friend class UndecidedStream;
  friend class AnchorWatch;
  friend class ClosedStream;
  friend class DeferredStream;
  friend class StrandedStream;
  friend class StreamReturn;

  // deferred_
  static constexpr uint32_t kSwitchUp = 1;  // sending side
  static constexpr uint32_t kSwitchDown = 2;
  static constexpr uint32_t kFin = 4;
  static constexpr uint32_t kReset = 8;
  static constexpr uint32_t kReplay = 0x200;
  static constexpr uint32_t kCheckAnchor = 0x800;
  static constexpr uint32_t kClose = 0x2000;     // of a direction that nobody has ended
  static constexpr uint32_t kRelease = 0x10000;  // send what is held back, in time
  static constexpr uint32_t kShut = 0x20000;     // the anchor may be due to end
  static constexpr uint32_t kSending =
      kSwitchUp | kSwitchDown | kFin | kReset | kReplay | kCheckAnchor | kClose | kRelease | kShut;
  static constexpr uint32_t kGo = 0x10;  // receiving side
  static constexpr uint32_t kSwitchAck = 0x20;
  static constexpr uint32_t kCredit = 0x40;
  static constexpr uint32_t kAskDown = 0x80;
  static constexpr uint32_t kSettle = 0x100;  // becomes Phase::kernel once it is down
  static constexpr uint32_t kEndHold = 0x400;
  static constexpr uint32_t kQuestionAnchor = 0x1000;  // bytes may have bypassed the peer's shim
  static constexpr uint32_t kBuffers = 0x4000;         // their sizes may have been set
  static constexpr uint32_t kLimit = 0x8000;           // what depends on these and the peer's
  static constexpr uint32_t kEndTaken = 0x40000;       // all before the peer's end has been read
  static constexpr uint32_t kReceiving = kGo | kSwitchAck | kCredit | kAskDown | kSettle |
                                         kEndHold | kQuestionAnchor | kBuffers | kLimit | kEndTaken;

  // ask_down
  static constexpr uint64_t kAskForGood = 1;
  static constexpr uint64_t kAskHold = 2;

  void defer(uint32_t what) noexcept;
  /// For note_reading() and note_writing(): what has waited for the first use is done now, or when
  /// the stream is bound.
  bool may_be_used() const noexcept;
  void use(std::atomic<bool>& used, uint32_t what) noexcept;
  void ask_for_clearance() noexcept;
  /// Tries to do what is deferred. False if something is left (lock held or ring full).
  bool run_deferred() noexcept;
  void close_door_locked() noexcept;
  void answer_hold() noexcept {
    if (peer_holds_.load(std::memory_order_seq_cst)) defer(kEndHold);
  }
  /// True if the peer has been asked to hold and has not answered.
  bool waits_for_hold() const noexcept;
  /// How many bytes the engine would take now, when `sent` bytes have been sent.
  uint64_t tx_room(uint64_t sent) const noexcept {
    // acquire pairs with the dispatcher's release; the value publishes nothing else.
    const uint64_t bound =
        tx_credit_.load(std::memory_order_acquire) - tx_held_back_.load(std::memory_order_relaxed);
    // A bound that has become smaller may lie below what was sent.
    return static_cast<int64_t>(bound - sent) > 0 ? bound - sent : 0;
  }
  // ending.cpp
  /// True if the direction has ended, or is about to, and the peer may hand back what lies unread
  /// there.
  bool keeps_anchor_open_locked() const noexcept;
  void shut_anchor_in_time_locked() noexcept;
  /// Called when everything that the peer had sent before its end has been read.
  void take_end_locked() noexcept;
  /// Leaves the peer's end, which is next to be read, to the anchor. False: the end has not come
  /// there, or may not be left to the anchor.
  bool leave_end_to_anchor_locked() noexcept;
  // buffers.cpp
  /// True if the peer is owed credit.
  bool set_limits_locked() noexcept;
  bool is_limited() const noexcept;
  bool tell_buffers_locked() noexcept;
  void put_low_water_locked(int bytes) noexcept;
  // cork.cpp
  /// True when nothing is held back any more.
  bool flush_held_locked() noexcept;
  /// Called when the direction has left the engine.
  void take_held_down_locked() noexcept;
  void look_at_cork_locked() noexcept;
  void held_changed_locked() noexcept;
  /// Called when a quarter of the window, or of the receive buffer if that is smaller, has been
  /// read: tells the peer.
  void give_credit_locked() noexcept;
  void wait_for_move_locked() noexcept;
  uint32_t run_sending_locked(uint32_t bits) noexcept;
  uint32_t run_receiving_locked(uint32_t bits) noexcept;
  bool send_control(FragmentType type, const void* payload, uint32_t length) noexcept;
  bool send_value(FragmentType type, uint64_t value) noexcept;

  void bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept;
  /// seq_cst for use(), besides the release that phase() pairs with.
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
    return tx_carrier() == Carrier::kernel && rx_carrier() == Carrier::kernel && !door_is_open() &&
           !has_replay();
  }
  RxHead error_or_end(const Segment& mark) const noexcept;
  void take_switch_down_locked() noexcept;
  // hand_back.cpp
  /// Dispatcher.
  void on_hold(uint64_t kernel_bytes) noexcept;
  bool take_back(std::span<const std::byte> bytes) noexcept;
  bool end_hand_back(uint64_t bytes) noexcept;
  /// True if nothing is sent on the anchor except under the send lock, and all of it was counted.
  bool may_hold() const noexcept;
  /// Moves the sending side down. False: try again later.
  bool send_switch_down_locked() noexcept;
  /// True if all that is left of the engine's share are bytes to be sent over the anchor.
  bool has_only_replay() const noexcept {
    return has_replay() && !awaits_hand_back() && tx_carrier() == Carrier::kernel &&
           rx_carrier() == Carrier::kernel && !door_is_open();
  }
  // recovery.cpp
  /// Called when the connection has failed and its ring is closed. Returns what this end has sent
  /// and received.
  StreamReport strand() noexcept;
  /// The same for a stream that is on the kernel for good. Its peer may not be: what came before
  /// the move may be unread there.
  StreamReport report_settled() const noexcept;
  /// Whether both directions can go on from where `theirs` says they are.
  bool can_land(const StreamReport& theirs) const noexcept;
  /// `unconfirmed`: the last engine bytes that this end sent, from where the peer's count ends.
  void land(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept;
  /// For a peer process that has ended: true if nothing that it sent to this end over the engine is
  /// missing. `left`: PeerProcess::left.
  bool has_all_of_gone_peer(bool left) const noexcept;
  /// Leaves both directions to the anchor from here on. `ended`: the peer sends nothing more.
  /// `unconfirmed`: as in land().
  void go_on_alone(bool ended, std::vector<std::byte> unconfirmed) noexcept;
  /// Dispatcher: the peer's stream is no more, and only the anchor is left of it.
  void be_left_alone(Reason reason) noexcept;
  /// For a stream that needs nothing more of its connection, which is gone: it ends without a mark
  /// over the engine.
  void forget_engine() noexcept;
  /// Sends the end mark, if it has not been sent. False: try again later.
  bool mark_end_locked() noexcept;
  /// Leaves the connection behind. True: the stream may be joined to another one. False: it never
  /// may, or not for now. Nothing: it is in use at this moment. Under the node's receive lock.
  std::optional<bool> start_over() noexcept;
  /// True if neither direction has been on the engine over this connection, as far as this side
  /// knows.
  bool never_used_engine() const noexcept;
  uint32_t run_stranded_locked(uint32_t bits) noexcept;
  /// The other side has ended, or its node has gone: readers get `error` after the data.
  void die(int error) noexcept;

  StreamServices* services_ = nullptr;
  uint32_t id_ = 0;
  uint32_t generation_ = 0;
  uint32_t peer_stream_ = 0;
  uint32_t peer_generation_ = 0;
  // Set under the lock of its lane; reset to null under the node's receive lock and both of this
  // stream's locks.
  std::atomic<Connection*> connection_{nullptr};
  std::atomic<bool> shares_host_{false};
  Tuple tuple_;
  std::atomic<int> anchor_{-1};
  std::atomic<Phase> phase_{Phase::undecided};
  std::atomic<Reason> reason_{Reason::none};
  std::atomic<uint32_t> deferred_{0};
  std::atomic<bool> dead_{false};
  std::atomic<int> error_{0};
  std::atomic<bool> error_told_{false};
  WatchList watches_;
  // Set by the application's side, read by the manager.
  std::atomic<bool> stay_down_{false};
  std::atomic<bool> for_good_{false};  // and because the program or the peer wants it
  bool accepted_ = false;              // this end asks who has the other one
  /// Under the node's receive lock: reopening.cpp.
  struct Return {
    bool expected = false;  // it is in the list of NodeStreams
    unsigned refusals = 0;
    uint64_t bound_at = 0;
    uint64_t wait = 0;     // nanoseconds
    uint64_t at = 0;       // not before
    uint64_t traffic = 0;  // bytes over the kernel when it left the engine; not without more
  } return_;
  bool closed_ = false;  // the descriptor is gone; the stream stays until the peer has ended too
  std::atomic<bool> peer_fin_{false};  // dispatcher
  bool retry_listed_ = false;          // under the node's retry lock
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
  // Set under that lock, read by readers of the stream.
  std::atomic<bool> end_questioned_{false};
  std::atomic<bool> end_believed_{false};  // the peer lives, and had sent nothing before its answer
  uint64_t suspect_since_ = 0;
  uint64_t probe_at_ = 0;
  uint64_t probe_wait_ = 0;
  bool anchor_failed_ = false;   // the anchor has an error, not only an end
  bool probe_answered_ = false;  // dispatcher: what the peer sent before the answer is here
  bool engine_sends_ = false;    // dispatcher: the peer's last mark was switch_up
  bool landed_ = false;          // manager, under the node's receive lock
  uint32_t reported_flags_ = 0;  // of strand()
  uint64_t tx_at_bind_ = 0;      // bytes over connections before this one
  uint64_t rx_at_bind_ = 0;

  std::atomic<uint32_t> rx_sequence_{0};
  std::atomic<uint32_t> tx_sequence_{0};

  alignas(64) Mutex send_lock_;
  std::atomic<Carrier> tx_carrier_{Carrier::kernel};
  bool tx_fin_ = false;
  std::atomic<bool> tx_acked_{true};  // cleared by the sender, set by the dispatcher
  std::atomic<bool> go_{false};
  std::atomic<bool> tx_used_{true};  // release pairs with the fetch_and in run_deferred()
  bool sent_past_shim_ = false;
  uint64_t moved_down_at_ = 0;  // ORB position behind the mark, until that is known to be posted
  std::atomic<bool> is_lost_{false};     // and the peer has been told: the stream ends here too
  std::atomic<bool> reset_sent_{false};  // the peer's answer to it does not matter
  std::atomic<bool> fin_sent_{false};
  bool lets_go_ = false;                // ends by FragmentType::closed; set before fin_sent_
  bool fin_marked_ = false;             // the peer has been told over the engine
  uint64_t fin_position_ = 0;           // ORB position behind that mark
  bool shuts_anchor_ = false;           // the anchor's end is still to come
  std::atomic<bool> end_taken_{false};  // dispatcher
  bool tx_landed_ = false;
  std::atomic<bool> has_replay_{false};
  bool corked_ = false;
  std::vector<std::byte> held_;
  uint64_t release_at_ = 0;  // nanoseconds of now_ns()
  std::atomic<bool> holds_back_{false};
  std::atomic<size_t> held_size_{0};
  std::vector<std::byte> replay_;
  size_t replay_done_ = 0;
  std::vector<std::byte> kept_;           // until the stream lands; goes behind what is sent again
  bool has_kept_ = false;                 // since the connection failed
  std::atomic<bool> hold_wanted_{false};  // dispatcher
  std::atomic<bool> awaits_back_{false};  // implies has_replay_
  std::atomic<bool> holds_no_more_{false};
  std::atomic<uint64_t> tx_kernel_{0};
  std::atomic<uint64_t> tx_engine_{0};
  std::atomic<uint64_t> tx_credit_{0};     // written by the dispatcher
  std::atomic<uint64_t> tx_held_back_{0};  // credit that the buffer sizes do not allow

  alignas(64) Mutex recv_lock_;
  std::atomic<Carrier> rx_carrier_{Carrier::kernel};
  std::atomic<bool> rx_door_{false};   // a go was sent and no switch_down has answered it
  std::atomic<uint32_t> rx_goes_{0};   // sent
  std::atomic<uint32_t> rx_downs_{0};  // dispatcher: switch_downs that have come, read or not
  uint32_t rx_ups_ = 0;                // dispatcher: switch_ups that have come
  std::atomic<bool> rx_ended_{false};  // dispatcher: fin, an error or the connection's end has come
  std::atomic<bool> rx_used_{true};    // as tx_used_
  struct KeptAlive {
    bool on = false;
    int idle = 0, interval = 0, count = 0;  // the program's values
  } kept_alive_;
  bool told_join_ = false;
  bool invites_ = true;  // invites the peer to send over the engine
  std::atomic<bool> seen_waiting_{false};
  std::atomic<bool> cleared_{false};
  std::atomic<bool> clearance_asked_{false};
  std::atomic<uint32_t> wanted_use_{0};  // kGo, kSwitchUp: use() was called, and waits for clear()
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> wants_hold_{false};
  bool asked_hold_ = false;  // the peer has been asked, once
  std::atomic<bool> was_held_{false};
  std::atomic<bool> peer_holds_{false};  // until it has been answered
  std::atomic<uint64_t> held_at_{0};     // dispatcher
  std::atomic<uint64_t> rx_kernel_{0};
  std::atomic<uint64_t> rx_engine_{0};       // read
  std::atomic<uint64_t> rx_credit_{0};       // given to the peer in all
  uint64_t window_ = 0;                      // from the node's configuration
  bool tells_end_ = false;                   // tells the peer when all before its end is read
  bool end_came_back_ = false;               // the end comes again behind what was handed back
  std::atomic<bool> end_withdrawn_{false};   // dispatcher: it comes behind what is handed back
  std::atomic<uint64_t> credit_step_{0};     // bytes to read before the peer is told; its lock
  std::atomic<int> low_water_{1};            // under the lock, once it is bound
  std::atomic<BufferSizes> own_buffers_{};   // as the peer was told, under the lock
  std::atomic<BufferSizes> peer_buffers_{};  // dispatcher, like the next
  std::atomic<uint64_t> peer_window_{0};
  alignas(64) std::atomic<uint64_t> rx_arrived_{0};  // dispatcher
  SegmentQueue queue_;
};

/// Holds the sending side of a stream. At the end of the scope, the lock is released and what
/// others have deferred is done, as unlock_send() says.
class SendSideGuard {
 public:
  [[gnu::always_inline]] explicit SendSideGuard(Stream& stream) noexcept : stream_(stream) {
    stream_.send_lock().lock();
  }
  /// For a caller that has taken the lock.
  SendSideGuard(Stream& stream, std::adopt_lock_t) noexcept : stream_(stream) {}
  [[gnu::always_inline]] ~SendSideGuard() { stream_.unlock_send(); }
  SendSideGuard(const SendSideGuard&) = delete;

 private:
  Stream& stream_;
};

/// The same for the receiving side.
class ReceiveSideGuard {
 public:
  [[gnu::always_inline]] explicit ReceiveSideGuard(Stream& stream) noexcept : stream_(stream) {
    stream_.recv_lock().lock();
  }
  ReceiveSideGuard(Stream& stream, std::adopt_lock_t) noexcept : stream_(stream) {}
  [[gnu::always_inline]] ~ReceiveSideGuard() { stream_.unlock_recv(); }
  ReceiveSideGuard(const ReceiveSideGuard&) = delete;

 private:
  Stream& stream_;
};

}  // namespace sidestep::engine

#pragma once
/// A stream: two directions of bytes over an anchor (a kernel TCP connection), each on a carrier
/// that can change at any byte.
///
/// Phases: undecided (on the kernel, bytes are counted, a move up is possible) -> bound (joined to
/// the other end's stream over a connection; each direction is on the kernel or the engine) ->
/// kernel (for good; nothing of the engine is involved any more). A stream may skip `bound`. One
/// whose connection made way for another goes from kernel back to undecided: reopening.cpp.
///
/// Protocol of one direction, sender S and receiver R:
///
///   R: go            "my reads wait for both carriers from now on"
///   S: switch_up(N)  after N bytes in all were handed to the kernel; then data fragments
///   R: switch_ack    R's readers know of N; before this S does not move down again, so that no
///                    byte behind the engine's is on the anchor while R may read it too early
///   S: switch_down   what follows is on the anchor; a new go is needed to move up once more. Each
///                    go is answered by one, whether S has moved up or will not
///   S: fin           after the last byte, whichever carrier the direction is on; then the anchor
///                    ends, too, when R has read all of it: ending.cpp
///
/// R sends no go before its program has read through the shim, and S no switch_up before its
/// program has written: one that uses its sockets in ways that the shim can't see (io_uring, raw
/// system calls) finds its bytes on the anchor, and is heard there. Neither does so before it is
/// cleared: the program has waited for the stream where the shim sees it, or has nothing by which
/// it could wait elsewhere. Who accepts binds the stream by a `join` meanwhile.
///
/// What was sent and not read is bounded by the receiver's window, which is memory that it has, and
/// by the sizes of the buffers that the programs have set: buffers.cpp.
///
/// Who is asked to come down so that another process can have the descriptor also takes back what
/// was not read of the engine's share, and sends it over the anchor: hand_back.cpp.
///
/// When the connection fails while both ends live, both directions go down at the byte that the
/// receiving end names, and what was sent beyond it is sent again over the anchor: recovery.hpp.
///
/// Locks: send_lock_ covers the sending side, recv_lock_ the reading side, each held for one
/// non-blocking step, never while waiting. A fragment that has to be sent by someone who can't have
/// the lock, or for whom the ring is full, is left in deferred_: whoever unlocks looks at it
/// (unlock is a full barrier), and the progress code tries again.
#include <sys/uio.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
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
class Node;
class StreamServices;
struct StreamReport;

enum class Carrier : uint8_t { kernel, engine };
enum class Phase : uint8_t { undecided, bound, kernel };

/// Sizes that a program has set (SO_SNDBUF, SO_RCVBUF) as the kernel tells them; 0: it has not.
struct alignas(8) BufferSizes {  // so that it is atomic by an instruction
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
  Stream() = default;
  Stream(const Stream&) = delete;

  // --- life; called by the owner of the descriptor (the shim, the benchmark) through Node ---

  /// Ids on this node; valid while the stream is in the table.
  uint32_t id() const noexcept { return id_; }
  uint32_t generation() const noexcept { return generation_; }
  const Tuple& tuple() const noexcept { return tuple_; }
  int anchor() const noexcept { return anchor_.load(std::memory_order_relaxed); }
  /// acquire pairs with the release in set_phase(): `connection()` is set when this says bound.
  Phase phase() const noexcept { return phase_.load(std::memory_order_acquire); }
  bool is_bound() const noexcept { return phase() == Phase::bound; }
  /// It is on the kernel, will never be anywhere else, and the peer cannot ask to hold it there.
  /// Any thread. The order of the last two: hand_back.cpp.
  [[gnu::always_inline]] bool is_kernels_for_good() const noexcept {
    // First: who sees that start_over() has let go of it sees the phase that it set before.
    const bool has_connection = connection_.load(std::memory_order_acquire) != nullptr;
    return phase() == Phase::kernel && !is_dead() &&
           (!has_connection ||
            (for_good_.load(std::memory_order_relaxed) &&
             (holds_no_more_.load(std::memory_order_seq_cst) || !shares_host()))) &&
           !has_replay();
  }
  /// To be used under one of this stream's locks or that of a lane: a stream whose
  /// connection makes way for another lets go of it (reopening.cpp). One that shares_host() never
  /// does while it lives.
  Connection* connection() const noexcept { return connection_.load(std::memory_order_relaxed); }
  /// The peer is on the same host and its connection there does not make way.
  bool shares_host() const noexcept { return shares_host_.load(std::memory_order_relaxed); }
  /// Why the stream is (still) on the kernel; never null.
  Reason reason() const noexcept { return reason_.load(std::memory_order_relaxed); }

  WatchList& watches() noexcept { return watches_; }
  /// Numbers that change with everything that may end a wait for reading or writing. A thread takes
  /// the number, tries, and waits for another number: nothing that happens after its try is missed.
  uint32_t rx_sequence() const noexcept { return rx_sequence_.load(std::memory_order_acquire); }
  uint32_t tx_sequence() const noexcept { return tx_sequence_.load(std::memory_order_acquire); }
  /// Changes the numbers, and after a full barrier tells the watchers.
  void signal(uint32_t events) noexcept {
    // seq_cst: the barrier between the change that is reported and the look at the watchers.
    if ((events & kReadable) != 0) rx_sequence_.fetch_add(1, std::memory_order_seq_cst);
    if ((events & kWritable) != 0) tx_sequence_.fetch_add(1, std::memory_order_seq_cst);
    if (!watches_.empty()) watches_.notify(*this, events);
  }

  // --- sending side; the caller holds send_lock() ---

  Mutex& send_lock() noexcept { return send_lock_; }
  /// Unlocks and does what others have left to be done.
  [[gnu::always_inline]] void unlock_send() noexcept {
    send_lock_.unlock();
    // relaxed: unlock() was a full barrier, and so is the fetch_or in defer() before its try_lock.
    if ((deferred_.load(std::memory_order_relaxed) & kSending) != 0) run_deferred();
  }
  Carrier tx_carrier() const noexcept { return tx_carrier_.load(std::memory_order_relaxed); }
  void count_kernel_sent(uint64_t bytes) noexcept {
    // A plain addition under the lock; atomic for those who only look (status).
    tx_kernel_.store(tx_kernel() + bytes, std::memory_order_relaxed);
  }
  /// The program writes through the shim. Without the lock; once is enough.
  void note_writing() noexcept {
    if (!tx_used_.load(std::memory_order_relaxed)) use(tx_used_, kSwitchUp);
  }
  /// Any thread. note_writing() or note_reading() was called, or need not be.
  bool is_used() const noexcept {
    return tx_used_.load(std::memory_order_relaxed) || rx_used_.load(std::memory_order_relaxed);
  }
  /// Any thread. The program has waited for the stream, or registered it, through the shim.
  void note_waiting() noexcept {
    if (seen_waiting_.load(std::memory_order_relaxed)) return;
    // use() sees it, or clear() what that wants.
    seen_waiting_.store(true, std::memory_order_seq_cst);
    clear();
  }
  /// It may have moved because there was nothing else by which the program could have waited.
  bool is_presumed_seen() const noexcept {
    return cleared_.load(std::memory_order_seq_cst) &&
           !seen_waiting_.load(std::memory_order_relaxed);
  }
  /// It has been used, and not been cleared (yet).
  bool is_held() const noexcept {
    return wanted_use_.load(std::memory_order_relaxed) != 0 &&
           !cleared_.load(std::memory_order_relaxed);
  }
  /// Set by the shim, once: whether the program may wait in ways that it does not see; nothing: it
  /// can't tell now. It takes its time, and is asked by the manager. Null: there is no such
  /// program.
  static std::atomic<std::optional<bool> (*)() noexcept> may_wait_unseen;
  /// Set by the shim, for good: the program does so. seq_cst: either use() sees it, or who has set
  /// it finds a stream that is_presumed_seen().
  static std::atomic<bool> waits_unseen;
  /// Before anything is sent over the anchor: the peer can find where the direction has moved
  /// there.
  void before_anchor_locked() noexcept {
    if (moved_down_at_ != 0) [[unlikely]]
      wait_for_move_locked();
  }
  /// Takes as many bytes as credit and ring allow now, from `offset` of the vector on: of memory
  /// that the caller has touched (user_copy.hpp), fewer where it is there no more. What it has
  /// taken has been posted when it returns.
  size_t send_engine_locked(const iovec* vector, int count, size_t offset, size_t length) noexcept;
  /// The same where some of it may be to wait for more (cork.cpp): holds_back(), or `more`.
  size_t send_held_locked(const iovec* vector, int count, size_t offset, size_t length,
                          bool more) noexcept;
  bool holds_back() const noexcept { return holds_back_.load(std::memory_order_relaxed); }
  /// For how many bytes the peer has room just now, as far as one sees without the lock.
  uint64_t may_send() const noexcept { return tx_room(tx_engine()); }
  /// Ends the direction. True when the mark has got to where the peer finds it before the anchor's
  /// end (or none is needed); else the anchor must stay open until fin_sent().
  bool finish_locked() noexcept;
  /// After finish_locked(), which was true: the caller closes the anchor, and nothing that is
  /// missing could come over it.
  void closes_anchor_locked() noexcept { shuts_anchor_ = false; }
  /// It has been ended: what the program would send now would come behind the end.
  bool has_ended_locked() const noexcept { return tx_fin_; }
  /// After finish_locked(). True: the caller ends the anchor's direction. False: the stream does,
  /// as soon as it may end.
  bool may_shut_anchor_locked() noexcept;
  /// Bytes that must go out over the anchor before any other (recovery.hpp).
  bool has_replay() const noexcept { return has_replay_.load(std::memory_order_seq_cst); }
  /// Sends of them what the anchor takes now. True when none are left.
  bool flush_replay_locked() noexcept;
  /// While the connection has failed and the bytes before are not on their way yet: takes a first
  /// few, once, to be sent over the anchor behind them. A program that was told that it can write
  /// is not told otherwise by its next call, because the kernel would not do that.
  size_t keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                size_t length) noexcept;
  /// The peer may hand bytes back before the anchor may be used (hand_back.cpp).
  bool awaits_hand_back() const noexcept { return awaits_back_.load(std::memory_order_acquire); }
  /// A socket that has not been used is writable, whatever other streams have in the ring: it was
  /// so when it was connected, and programs rely on it (the JDK's finishConnect).
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
  /// The bytes that it would show, as a rule; where it would show anything else, none.
  std::span<const std::byte> rx_data_locked() noexcept {
    if (rx_carrier() != Carrier::engine) return {};
    const Segment* const segment = queue_.front();
    if (segment == nullptr || segment->kind != SegmentKind::data) return {};
    return {segment->data, segment->length};
  }
  /// `bytes` of rx_head_locked()'s data were read.
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
  /// The error that rx_head_locked() shows was given to the program: from now on it shows the end.
  void clear_error_locked() noexcept;
  void count_kernel_received(uint64_t bytes) noexcept {
    rx_kernel_.store(rx_kernel() + bytes, std::memory_order_relaxed);
  }
  /// Visits unread engine data in order, for MSG_PEEK: visit(const std::byte*, size_t) -> go on?
  /// From the move up on, where that is the first to come. True: it came to a move down.
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
  /// The peer holds its direction, down to the kernel: bytes that it has sent there in all.
  std::optional<uint64_t> held_at_locked() const noexcept;
  /// Hands everything that has been read of this direction and not given to the program back to
  /// the peer that holds it, to come over the anchor once more. False: too much, or no room; the
  /// peer goes on without.
  bool hand_back_locked(std::span<const std::byte> unread) noexcept;
  /// Nothing will be handed back any more.
  void end_hold_locked() noexcept;
  /// Kernel bytes that come before the last of the engine's that are queued; 0 when none do.
  /// `moved_down`: and what the kernel has beyond them comes behind the queue.
  uint64_t kernel_bytes_before_locked(bool& moved_down) noexcept;
  /// The program reads through the shim. Without the lock; once is enough.
  void note_reading() noexcept {
    if (!rx_used_.load(std::memory_order_relaxed)) use(rx_used_, kGo);
  }
  /// The program closes, and asks the peer to come back to the engine no more: with room here, it
  /// would send where the kernel's answer is a reset. Holds the lock.
  void stop_inviting_locked() noexcept { invites_ = false; }
  /// The program is about to shut the anchor down for reading.
  void shut_reading() noexcept { read_shut_.store(true, std::memory_order_relaxed); }
  /// Copies what refers to receive buffers into private memory. Returns bytes.
  uint64_t spill_locked() noexcept { return queue_.spill(); }

  // --- any thread ---

  /// Bytes of the engine that have arrived and were not read.
  uint64_t rx_queued() const noexcept {
    return rx_arrived_.load(std::memory_order_acquire) - rx_engine_.load(std::memory_order_relaxed);
  }
  /// Whether a send over the engine would take a byte now.
  bool can_send_engine() noexcept;
  /// As can_send_engine(); where the ring has no room, asks to be told when it has.
  bool can_send_or_wants_space() noexcept;
  /// The program has set TCP_CORK, or not.
  void note_cork() noexcept;
  /// What waits for more goes out.
  void push() noexcept;
  /// The program has set the size of a buffer of the anchor.
  void note_buffers() noexcept;
  /// SO_RCVLOWAT. From the first go until the stream is on the kernel for good its anchor has 1:
  /// what lies there may be less, and enough with what came over the engine, and the kernel would
  /// tell of nothing.
  int low_water() const noexcept { return low_water_.load(std::memory_order_relaxed); }
  /// The program has set it; not to more than the engine serves.
  void note_low_water(int bytes) noexcept;
  /// Options that keepalive.cpp sets where the program has not: to be set by the program under
  /// recv_lock(), behind end_keep_alive_locked().
  static bool concerns_keep_alive(int level, int name) noexcept;
  void end_keep_alive_locked() noexcept;
  /// What the program has set, where the kernel has something else.
  std::optional<int> hidden_by_keep_alive(int level, int name) noexcept;
  /// Bytes that may lie here unread before the peer has to wait for credit, at least.
  uint64_t most_unread() const noexcept { return 3 * credit_step_.load(std::memory_order_relaxed); }
  /// An error that the next call has to report, taken once (as SO_ERROR does); 0: none.
  bool has_error() const noexcept { return error_.load(std::memory_order_relaxed) != 0; }
  /// Whether an end of the anchor that a reader finds now may hide a loss: the peer was free to go
  /// on over the engine, and where the device is not ordered with the anchor, what moved the stream
  /// may be under way, or have died with the peer. Node::question_end() finds out.
  bool doubts_end() const noexcept;
  /// Such an end was found and is being looked into; nothing more comes from the anchor.
  bool end_is_questioned() const noexcept {
    return end_questioned_.load(std::memory_order_relaxed);
  }
  /// The stream is lost, and the program has not been told: the end of the anchor is to be shown as
  /// that. Behind the peer's own end nothing is missing.
  bool end_is_lost() const noexcept {
    if (!is_dead() || peer_has_finished()) return false;
    const int error = error_.load(std::memory_order_relaxed);
    return error != 0 && error != EPIPE;
  }
  bool peer_has_finished() const noexcept { return peer_fin_.load(std::memory_order_acquire); }
  /// By who holds the lock of a lane, or a reference to the socket. Without this stream's
  /// locks, which a busy program hardly gives up.
  TcpState anchor_state() const noexcept;
  /// The owner's anchor has another number now; send and receive lock are held.
  void set_anchor(int fd) noexcept { anchor_.store(fd, std::memory_order_relaxed); }
  int take_error() noexcept { return error_.exchange(0, std::memory_order_seq_cst); }
  /// The program has been told of an error: as in the kernel, it is told once, although the anchor
  /// and the engine may both have one. Any thread.
  void error_told() noexcept {
    error_told_.store(true, std::memory_order_seq_cst);  // pairs with die()
    take_error();
  }
  bool was_error_told() const noexcept { return error_told_.load(std::memory_order_relaxed); }
  bool is_dead() const noexcept { return dead_.load(std::memory_order_acquire); }
  /// Tells the peer that what it has sent or will send is lost (close with unread data).
  void reset() noexcept;
  /// A stream without a node, on the kernel for good: what a child of fork has. Owned by the
  /// caller. `torn`: it has been lost (ECONNRESET), because it was not brought there.
  static Stream* make_detached(const Tuple& tuple, int anchor, bool torn) noexcept;
  bool is_detached() const noexcept { return services_ == nullptr; }
  /// Asks both ends to bring the stream down to the kernel, for good where there is a `reason`.
  /// `hold`: and the peer to send nothing there before hand_back_locked(), where it can.
  void request_down(Reason reason, bool hold = false) noexcept;
  /// The two halves of it. Between them an end whose peer is asked to hold as well, and which has
  /// ended its direction, may hear of that: brought down before, it could not hold.
  void ask_peer_down(Reason reason, bool hold) noexcept;
  void go_down() noexcept;
  /// request_down() has asked the peer to hold, and nothing has ended that.
  bool wants_hold() const noexcept { return wants_hold_.load(std::memory_order_relaxed); }
  /// Both directions are on the kernel, and nothing will come or is to be read over the engine.
  bool is_down() noexcept;
  /// As is_down(), but bytes of the engine may still wait to be read.
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
  /// The queue holds every byte the engine will bring before another go.
  bool rx_complete() const noexcept {
    // acquire: who sees a mark counted sees it queued. The answers first: a go is counted before it
    // is sent, so none that is under way is missed.
    const uint32_t answered = rx_downs_.load(std::memory_order_acquire);
    return rx_ended_.load(std::memory_order_acquire) ||
           answered >= rx_goes_.load(std::memory_order_acquire);
  }

  uint64_t tx_engine() const noexcept { return tx_engine_.load(std::memory_order_relaxed); }
  uint64_t rx_engine() const noexcept { return rx_engine_.load(std::memory_order_relaxed); }
  uint64_t tx_kernel() const noexcept { return tx_kernel_.load(std::memory_order_relaxed); }
  uint64_t rx_kernel() const noexcept { return rx_kernel_.load(std::memory_order_relaxed); }

 private:
  friend class Node;
  friend class StreamTable;
  friend class Dispatcher;
  friend class Manager;

  // deferred_
  static constexpr uint32_t kSwitchUp = 1;  // sending side
  static constexpr uint32_t kSwitchDown = 2;
  static constexpr uint32_t kFin = 4;
  static constexpr uint32_t kReset = 8;
  static constexpr uint32_t kReplay = 0x200;
  static constexpr uint32_t kCheckAnchor = 0x800;
  static constexpr uint32_t kClose = 0x2000;     // of what nobody has ended
  static constexpr uint32_t kRelease = 0x10000;  // what is held back, in time
  static constexpr uint32_t kShut = 0x20000;     // the anchor may be due to end
  static constexpr uint32_t kSending =
      kSwitchUp | kSwitchDown | kFin | kReset | kReplay | kCheckAnchor | kClose | kRelease | kShut;
  static constexpr uint32_t kGo = 0x10;  // receiving side
  static constexpr uint32_t kSwitchAck = 0x20;
  static constexpr uint32_t kCredit = 0x40;
  static constexpr uint32_t kAskDown = 0x80;
  static constexpr uint32_t kSettle = 0x100;  // becomes Phase::kernel once it is down
  static constexpr uint32_t kEndHold = 0x400;
  static constexpr uint32_t kQuestionAnchor = 0x1000;  // what is there may be past the peer's shim
  static constexpr uint32_t kBuffers = 0x4000;         // they may have been set
  static constexpr uint32_t kLimit = 0x8000;           // what depends on them and on the peer's
  static constexpr uint32_t kEndTaken = 0x40000;       // all before the peer's end was read
  static constexpr uint32_t kReceiving = kGo | kSwitchAck | kCredit | kAskDown | kSettle |
                                         kEndHold | kQuestionAnchor | kBuffers | kLimit | kEndTaken;

  // ask_down
  static constexpr uint64_t kAskForGood = 1;
  static constexpr uint64_t kAskHold = 2;

  void defer(uint32_t what) noexcept;
  /// For note_reading() and note_writing(): what has waited for it is done now, or when the stream
  /// is bound.
  bool may_be_used() const noexcept;
  void use(std::atomic<bool>& used, uint32_t what) noexcept;
  /// What use() was called for meanwhile is done.
  void clear() noexcept;
  void ask_for_clearance() noexcept;
  /// Tries what is deferred. False when something is left (lock held or ring full).
  bool run_deferred() noexcept;
  void close_door_locked() noexcept;
  void answer_hold() noexcept {
    if (peer_holds_.load(std::memory_order_seq_cst)) defer(kEndHold);
  }
  /// The peer has been asked to hold and has not answered.
  bool waits_for_hold() const noexcept;
  /// Bytes that the engine would take now, of which `sent` have been sent.
  uint64_t tx_room(uint64_t sent) const noexcept {
    // acquire pairs with the dispatcher's release; the value stands for nothing else.
    const uint64_t bound =
        tx_credit_.load(std::memory_order_acquire) - tx_held_back_.load(std::memory_order_relaxed);
    // A bound that has become smaller may lie before what was sent.
    return static_cast<int64_t>(bound - sent) > 0 ? bound - sent : 0;
  }
  // ending.cpp
  /// The direction has ended, or is about to, and the peer may hand back what lies unread there.
  bool keeps_anchor_open_locked() const noexcept;
  void shut_anchor_in_time_locked() noexcept;
  /// All that the peer had sent before its end was read.
  void take_end_locked() noexcept;
  /// The peer's end, which is the next to be read, is the anchor's from here on. False: it has not
  /// come there, or may not be left to it.
  bool leave_end_to_anchor_locked() noexcept;
  // buffers.cpp
  /// True: the peer is owed credit.
  bool set_limits_locked() noexcept;
  bool is_limited() const noexcept;
  bool tell_buffers_locked() noexcept;
  void put_low_water_locked(int bytes) noexcept;
  // cork.cpp
  /// True when nothing is held back any more.
  bool flush_held_locked() noexcept;
  /// The direction has left the engine.
  void take_held_down_locked() noexcept;
  void look_at_cork_locked() noexcept;
  void held_changed_locked() noexcept;
  // keepalive.cpp
  void keep_alive_locked(int seconds) noexcept;
  /// A quarter of the window has been read: the peer is told.
  void give_credit_locked() noexcept;
  void wait_for_move_locked() noexcept;
  uint32_t run_sending_locked(uint32_t bits) noexcept;
  uint32_t run_receiving_locked(uint32_t bits) noexcept;
  bool send_control(FragmentType type, const void* payload, uint32_t length) noexcept;
  bool send_value(FragmentType type, uint64_t value) noexcept;

  void bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept;
  /// seq_cst: for use(), besides the release that phase() pairs with.
  void set_phase(Phase phase) noexcept {
    phase_.store(phase, std::memory_order_seq_cst);
    if (phase != Phase::undecided) unlist();
  }
  /// Of one that a program has connected: is to be found in the directory, until it is decided or
  /// unlist()ed. Any thread that keeps the stream from being freed.
  void list(Directory& directory) noexcept;
  void unlist() noexcept {
    // seq_cst: pairs with list(), which looks at the phase behind it.
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
  /// Nothing is sent on the anchor but under the send lock, and all of that was counted.
  bool may_hold() const noexcept;
  /// Moves the sending side down. False: again later.
  bool send_switch_down_locked() noexcept;
  /// All that is left of the engine's share is to be sent over the anchor.
  bool has_only_replay() const noexcept {
    return has_replay() && !awaits_hand_back() && tx_carrier() == Carrier::kernel &&
           rx_carrier() == Carrier::kernel && !door_is_open();
  }
  // recovery.cpp
  /// The connection has failed and its ring is closed: what this end has sent and received.
  StreamReport strand() noexcept;
  /// The same of one that is on the kernel for good. Its peer may not be: what came before the move
  /// may be unread there.
  StreamReport report_settled() const noexcept;
  /// Whether both directions can go on from where `theirs` says.
  bool can_land(const StreamReport& theirs) const noexcept;
  /// `unconfirmed`: the last engine bytes of this end, from where the peer's count ends.
  void land(const StreamReport& theirs, std::vector<std::byte> unconfirmed) noexcept;
  /// The peer process has ended, and nothing that it sent to this end over the engine is missing.
  /// `left`: PeerProcess::left.
  bool has_all_of_gone_peer(bool left) const noexcept;
  /// Both directions are the anchor's from here on. `ended`: what the peer sent was all; as land().
  void go_on_alone(bool ended, std::vector<std::byte> unconfirmed) noexcept;
  /// Dispatcher: the peer's stream is no more, and all that is left of it is the anchor.
  void be_left_alone(Reason reason) noexcept;
  /// On the kernel for good, and the connection is gone: ends without a mark over the engine.
  void forget_engine() noexcept;
  /// Sends the end mark, if it has not been sent. False: again later.
  bool mark_end_locked() noexcept;
  /// It has left its connection behind and may be joined to another. False: never, or for now it
  /// may not. None: it is in use at this moment. Under the node's receive lock.
  std::optional<bool> start_over() noexcept;
  /// Neither direction has been on the engine, as far as this side knows.
  bool never_used_engine() const noexcept;
  uint32_t run_stranded_locked(uint32_t bits) noexcept;
  /// Dispatcher: the other side has ended, or its node has gone; readers get `error` after the
  /// data.
  void die(int error) noexcept;

  StreamServices* services_ = nullptr;
  uint32_t id_ = 0;
  uint32_t generation_ = 0;
  uint32_t peer_stream_ = 0;
  uint32_t peer_generation_ = 0;
  // Set under the lock of its lane; back to null under the node's receive lock and both of this
  // stream's.
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
  std::atomic<bool> for_good_{false};  // and because of what the program or the peer wants
  bool accepted_ = false;              // this end asks who has the other
  /// Under the node's receive lock: reopening.cpp.
  struct Return {
    bool expected = false;  // it is in the node's list
    unsigned refusals = 0;
    uint64_t bound_at = 0;
    uint64_t wait = 0;     // nanoseconds
    uint64_t at = 0;       // not before
    uint64_t traffic = 0;  // not without any: bytes over the kernel when it left the engine
  } return_;
  bool closed_ = false;  // the descriptor is gone; the stream stays until the peer has ended too
  std::atomic<bool> peer_fin_{false};  // dispatcher
  bool retry_listed_ = false;          // under the node's retry lock
  /// Who may bind this stream, because it was told that this end is here. Under the node's receive
  /// lock.
  struct Claim {
    uint32_t peer = 0;        // its number; 0: nobody
    uint32_t generation = 0;  // of the peer's stream
    uint64_t since = 0;
  } claim_;
  std::atomic<Directory*> listed_in_{nullptr};
  uint64_t opened_at_ = 0;  // nanoseconds of now_ns()
  // Progress, under the node's receive lock: the anchor has ended and the engine has not.
  bool suspect_ = false;
  // Set under that lock, read by readers of the stream.
  std::atomic<bool> end_questioned_{false};
  std::atomic<bool> end_believed_{false};  // the peer lives, and had sent nothing before its answer
  uint64_t suspect_since_ = 0;
  uint64_t probe_at_ = 0;
  uint64_t probe_wait_ = 0;
  bool anchor_failed_ = false;   // it has an error, not only an end
  bool probe_answered_ = false;  // dispatcher: what the peer sent before that has been received
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
  std::atomic<bool> is_lost_{false};     // and the peer has been told: it ends here too
  std::atomic<bool> reset_sent_{false};  // the peer's answer to it is of no interest
  std::atomic<bool> fin_sent_{false};
  bool lets_go_ = false;                // by FragmentType::closed; before fin_sent_
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
  std::vector<std::byte> kept_;           // until it lands: goes behind what is sent again
  bool has_kept_ = false;                 // since the connection failed
  std::atomic<bool> hold_wanted_{false};  // dispatcher
  std::atomic<bool> awaits_back_{false};  // implies has_replay_
  std::atomic<bool> holds_no_more_{false};
  std::atomic<uint64_t> tx_kernel_{0};
  std::atomic<uint64_t> tx_engine_{0};
  std::atomic<uint64_t> tx_credit_{0};     // written by the dispatcher
  std::atomic<uint64_t> tx_held_back_{0};  // credit that the buffers' sizes do not allow to use

  alignas(64) Mutex recv_lock_;
  std::atomic<Carrier> rx_carrier_{Carrier::kernel};
  std::atomic<bool> rx_door_{false};   // a go was sent and no switch_down has answered it
  std::atomic<uint32_t> rx_goes_{0};   // sent
  std::atomic<uint32_t> rx_downs_{0};  // dispatcher: switch_down has come, read or not
  uint32_t rx_ups_ = 0;                // dispatcher: so has switch_up
  std::atomic<bool> rx_ended_{false};  // dispatcher: so has fin, an error or the connection's end
  std::atomic<bool> rx_used_{true};    // as tx_used_
  struct KeptAlive {
    bool on = false;
    int idle = 0, interval = 0, count = 0;  // the program's
  } kept_alive_;
  bool told_join_ = false;
  bool invites_ = true;  // the peer to send over the engine
  std::atomic<bool> seen_waiting_{false};
  std::atomic<bool> cleared_{false};
  std::atomic<bool> clearance_asked_{false};
  std::atomic<uint32_t> wanted_use_{0};  // kGo, kSwitchUp: use() was called, and waits for that
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> wants_hold_{false};
  bool asked_hold_ = false;  // the peer, once
  std::atomic<bool> was_held_{false};
  std::atomic<bool> peer_holds_{false};  // until it has been answered
  std::atomic<uint64_t> held_at_{0};     // dispatcher
  std::atomic<uint64_t> rx_kernel_{0};
  std::atomic<uint64_t> rx_engine_{0};       // read
  std::atomic<uint64_t> rx_credit_{0};       // given to the peer in all
  uint64_t window_ = 0;                      // of the node's configuration
  bool tells_end_ = false;                   // to the peer, when all before it has been read
  bool end_came_back_ = false;               // behind what was handed back
  std::atomic<bool> end_withdrawn_{false};   // dispatcher: to come behind what is handed back
  std::atomic<uint64_t> credit_step_{0};     // so much is read before the peer is told; its lock
  std::atomic<int> low_water_{1};            // under the lock, once it is bound
  std::atomic<BufferSizes> own_buffers_{};   // as the peer was told, under the lock
  std::atomic<BufferSizes> peer_buffers_{};  // dispatcher, as the next
  std::atomic<uint64_t> peer_window_{0};
  alignas(64) std::atomic<uint64_t> rx_arrived_{0};  // dispatcher
  SegmentQueue queue_;
};

}  // namespace sidestep::engine

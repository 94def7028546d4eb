#pragma once
/// The direction of a stream in which this end receives (R in stream.hpp).
///
/// mutex() covers the reading side; direction.hpp says what becomes of fragments that could not be
/// sent. The dispatcher, which puts into the queue what arrives, holds no lock but that of its
/// lane.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/stream/direction.hpp"
#include "engine/stream/direction_states.hpp"
#include "engine/stream/segment_queue.hpp"

namespace sidestep::engine {

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

class Receiver : public Direction {
 public:
  /// `window`: how many bytes may lie here unread.
  Receiver(Stream& stream, bool in_use, uint64_t window) noexcept
      : Direction(stream, in_use), window_(window), credit_step_(window / 4) {}

  // --- reading; the caller holds mutex() ---

  RxHead head_locked() noexcept;
  /// As a rule the bytes that head_locked() would show; none where it would show anything else.
  std::span<const std::byte> data_locked() noexcept {
    if (carrier() != Carrier::engine) return {};
    const Segment* const segment = queue_.front();
    if (segment == nullptr || segment->kind != SegmentKind::data) return {};
    return {segment->data, segment->length};
  }
  /// Called when `bytes` of head_locked()'s data have been read.
  [[gnu::always_inline]] void consume_locked(uint64_t bytes) noexcept {
    Segment& segment = *queue_.front();
    segment.data += bytes;
    segment.length -= static_cast<uint32_t>(bytes);
    if (segment.length == 0) {
      RecvBuffer* const buffer = segment.buffer;
      queue_.pop();
      if (buffer != nullptr) buffer->drop(1);
    }
    const uint64_t read = engine_bytes() + bytes;
    engine_.store(read, std::memory_order_relaxed);
    if (tells_end_ && queued() == 0) [[unlikely]]
      take_end_locked();
    if (read + window_ - credit_.load(std::memory_order_relaxed) >=
        credit_step_.load(std::memory_order_relaxed))
      give_credit_locked();
  }
  /// Called when the error that head_locked() shows has been given to the program: from now on that
  /// function shows the end.
  void clear_error_locked() noexcept;
  void count_kernel(uint64_t bytes) noexcept {
    kernel_.store(kernel_bytes() + bytes, std::memory_order_relaxed);
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
  /// The number of kernel bytes that come before the last queued engine bytes; 0 if none do.
  /// `moved_down`: whether what the kernel has beyond them comes behind the queue.
  uint64_t kernel_bytes_before_locked(bool& moved_down) noexcept;
  /// Copies what refers to receive buffers into private memory. Returns the number of bytes.
  uint64_t spill_locked() noexcept { return queue_.spill(); }
  /// Called when the program closes: stops asking the peer to come back to the engine. With room
  /// here, the peer would send where the kernel's answer is a reset.
  void stay_unready_locked() noexcept { may_be_ready_ = false; }

  // --- unread bytes that go back (unread_return.cpp); the caller holds mutex() ---

  /// If the peer holds its direction, which is down on the kernel: how many bytes it has sent there
  /// in all.
  std::optional<uint64_t> held_at_locked() const noexcept;
  /// Hands everything that was read from this direction and not given to the program back to the
  /// peer that holds it, so that it comes once more over the anchor. False: too much, or no room;
  /// the peer goes on without it.
  bool return_unread_locked(std::span<const std::byte> unread) noexcept;
  /// Called when nothing will be returned any more.
  void end_hold_locked() noexcept;

  // --- any thread ---

  ReceiverState state() const noexcept { return state_.load(std::memory_order_acquire); }
  /// As Sender::sequence(), for reading.
  uint32_t sequence() const noexcept { return sequence_.load(std::memory_order_acquire); }
  Carrier carrier() const noexcept { return carrier_of(state_.load(std::memory_order_relaxed)); }
  /// Bytes that have been read.
  uint64_t engine_bytes() const noexcept { return engine_.load(std::memory_order_relaxed); }
  uint64_t kernel_bytes() const noexcept { return kernel_.load(std::memory_order_relaxed); }
  /// The number of engine bytes that have arrived and are unread.
  [[gnu::always_inline]] uint64_t queued() const noexcept {
    return arrived_.load(std::memory_order_acquire) - engine_.load(std::memory_order_relaxed);
  }
  /// At least this many bytes may lie here unread before the peer has to wait for credit.
  uint64_t most_unread() const noexcept { return 3 * credit_step_.load(std::memory_order_relaxed); }
  /// Called when the program reads through the shim. One call is enough.
  void note_reading() noexcept {
    if (!used_.load(std::memory_order_relaxed)) begin_use();
  }
  /// Called when the program is about to shut the anchor down for reading.
  void shut_reading() noexcept { read_shut_.store(true, std::memory_order_relaxed); }
  /// Called when the program has set the size of a buffer of the anchor.
  void note_buffers() noexcept;
  /// SO_RCVLOWAT. From the first go until the stream is on the kernel for good, the anchor itself
  /// has 1: what lies there may be less than the mark, but enough together with what came over the
  /// engine, and the kernel would report nothing.
  int low_water() const noexcept { return low_water_.load(std::memory_order_relaxed); }
  /// Called when the program has set it, though not to more than the engine serves.
  void note_low_water(int bytes) noexcept;
  /// Whether anything may still come over the engine for this stream that is not in its queue yet.
  bool is_receive_ready() const noexcept { return state() != ReceiverState::kernel; }
  /// Whether a poll may find something for a reader. Without a lock.
  bool may_get_from_engine() const noexcept;
  /// True if the queue holds every byte that the engine will bring before another receive_ready.
  bool is_complete() const noexcept {
    // acquire: a thread that sees a mark counted sees it queued. The answers are loaded first: a
    // receive_ready is counted before it is sent, so none that is under way is missed.
    const uint32_t answered = downs_.load(std::memory_order_acquire);
    return ended_.load(std::memory_order_acquire) ||
           answered >= goes_.load(std::memory_order_acquire);
  }
  bool peer_has_finished() const noexcept { return peer_fin_.load(std::memory_order_acquire); }
  /// True if Stream::request_down() has asked the peer to hold and nothing has ended that.
  bool wants_hold() const noexcept { return wants_hold_.load(std::memory_order_relaxed); }
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
  bool end_is_lost() const noexcept;

 private:
  // As in Sender.
  friend class Stream;
  friend class Sender;
  friend class Clearance;
  friend class StreamInput;
  friend class UndecidedStream;
  friend class AnchorWatch;
  friend class ClosedStream;
  friend class StreamFailover;

  // deferred_
  static constexpr uint32_t kGo = 1;
  static constexpr uint32_t kSwitchAck = 2;
  static constexpr uint32_t kCredit = 4;
  static constexpr uint32_t kAskDown = 8;
  static constexpr uint32_t kSettle = 0x10;  // becomes Phase::kernel once it is down
  static constexpr uint32_t kEndHold = 0x20;
  static constexpr uint32_t kQuestionAnchor = 0x40;  // bytes may have bypassed the peer's shim
  static constexpr uint32_t kBuffers = 0x80;         // their sizes may have been set
  static constexpr uint32_t kLimit = 0x100;          // what depends on these and the peer's
  static constexpr uint32_t kEndTaken = 0x200;       // all before the peer's end has been read

  // ask_down
  static constexpr uint64_t kAskForGood = 1;
  static constexpr uint64_t kAskHold = 2;

  /// Makes a step, under the lock.
  void enter(ReceiverState to) noexcept;
  /// Tries to do what is deferred. False if something is left.
  bool run_own_deferred() noexcept;
  /// Returns what is left of `bits`.
  uint32_t run_locked(uint32_t bits) noexcept;
  void begin_use() noexcept;
  void end_readiness_locked() noexcept;
  RxHead error_or_end(const Segment& mark) const noexcept;
  void take_switch_down_locked() noexcept;
  /// Called when a quarter of the window, or of the receive buffer if that is smaller, has been
  /// read: tells the peer.
  void give_credit_locked() noexcept;
  // ending.cpp
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
  // reopening.cpp
  bool can_start_over_locked() noexcept;
  void start_over_locked() noexcept;
  // unread_return.cpp
  /// Dispatcher.
  void on_hold(uint64_t kernel_bytes) noexcept;
  void answer_hold() noexcept {
    if (peer_holds_.load(std::memory_order_seq_cst)) defer(kEndHold);
  }
  /// True if the peer has been asked to hold and has not answered.
  bool waits_for_hold() const noexcept;

  std::atomic<ReceiverState> state_{ReceiverState::kernel};
  std::atomic<uint32_t> goes_{0};   // sent
  std::atomic<uint32_t> downs_{0};  // dispatcher: switch_downs that have come, read or not
  uint32_t ups_ = 0;                // dispatcher: switch_ups that have come
  std::atomic<bool> ended_{false};  // dispatcher: fin, an error or the connection's end has come
  bool told_join_ = false;
  bool may_be_ready_ = true;  // tells the peer that it may send over the engine
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> wants_hold_{false};
  bool asked_hold_ = false;  // the peer has been asked, once
  std::atomic<bool> was_held_{false};
  std::atomic<bool> peer_holds_{false};  // until it has been answered
  std::atomic<uint64_t> held_at_{0};     // dispatcher
  std::atomic<uint64_t> kernel_{0};
  std::atomic<uint64_t> engine_{0};          // read
  std::atomic<uint64_t> credit_{0};          // given to the peer in all
  uint64_t window_ = 0;                      // from the node's configuration
  bool tells_end_ = false;                   // tells the peer when all before its end is read
  bool end_came_back_ = false;               // the end comes again behind what was returned
  std::atomic<bool> end_withdrawn_{false};   // dispatcher: it comes behind what is returned
  std::atomic<uint64_t> credit_step_{0};     // bytes to read before the peer is told; its lock
  std::atomic<int> low_water_{1};            // under the lock, once it is bound
  std::atomic<BufferSizes> own_buffers_{};   // as the peer was told, under the lock
  std::atomic<BufferSizes> peer_buffers_{};  // dispatcher, like the next
  std::atomic<uint64_t> peer_window_{0};
  uint64_t arrived_at_bind_ = 0;  // bytes over connections before this one
  // Set under the node's receive lock, read by readers of the stream.
  std::atomic<bool> end_questioned_{false};
  std::atomic<bool> end_believed_{false};  // the peer lives, and had sent nothing before its answer
  // Of the dispatcher.
  alignas(64) std::atomic<uint64_t> arrived_{0};
  std::atomic<uint32_t> sequence_{0};  // Stream::signal()
  SegmentQueue queue_;
  std::atomic<bool> peer_fin_{false};
  bool engine_sends_ = false;  // the peer's last mark was switch_up
};

}  // namespace sidestep::engine

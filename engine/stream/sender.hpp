#pragma once
/// The direction of a stream in which this end sends (S in stream.hpp).
///
/// mutex() covers everything that is not said to be for any thread; direction.hpp says what becomes
/// of fragments that could not be sent.
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/stream/direction.hpp"
#include "engine/stream/direction_states.hpp"

namespace sidestep::engine {

class Sender : public Direction {
 public:
  Sender(Stream& stream, bool in_use) noexcept : Direction(stream, in_use) {}

  // --- sending; the caller holds mutex() ---

  /// Called before anything is sent over the anchor: on return, the peer can find the byte at which
  /// the direction has moved there.
  void before_anchor_locked() noexcept {
    if (moved_down_at_ != 0) [[unlikely]]
      wait_for_move_locked();
  }
  /// Takes as many bytes as credit and ring allow now, from `offset` of the vector on, and sends
  /// them over the engine. The caller has touched that memory (user_copy.hpp); where it is gone
  /// again, fewer bytes are taken. On return, everything that was taken has been posted.
  size_t send_locked(const iovec* vector, int count, size_t offset, size_t length) noexcept;
  /// The same where some bytes may have to wait for more (cork.cpp): if holds_back(), or `more`.
  size_t send_held_locked(const iovec* vector, int count, size_t offset, size_t length,
                          bool more) noexcept;
  void count_kernel(uint64_t bytes) noexcept {
    // A plain addition under the lock; atomic for threads that only read it (status).
    kernel_.store(kernel_bytes() + bytes, std::memory_order_relaxed);
  }
  /// While earlier bytes still have to go out over the anchor, after the connection has failed or
  /// until bytes come back from the peer: takes a first few bytes, once, to be sent over the anchor
  /// behind those. A program that was told that it can write must not be told otherwise by its next
  /// call: the kernel would not do that.
  size_t keep_for_anchor_locked(const iovec* vector, int count, size_t offset,
                                size_t length) noexcept;
  /// Sends as many as the anchor takes now of the bytes that has_replay() tells of. True if none
  /// are left.
  bool flush_replay_locked() noexcept;

  // --- its end; the caller holds mutex() ---

  /// Ends the direction. True if the end mark is where the peer finds it before the anchor's end
  /// (or no mark is needed); otherwise the anchor must stay open until has_told_end().
  bool finish_locked() noexcept;
  /// Called after finish_locked() returned true: the caller closes the anchor, and nothing that is
  /// missing could come over it.
  void closes_anchor_locked() noexcept { shuts_anchor_ = false; }
  /// True if the direction has been ended: what the program sent now would come behind the end.
  bool has_ended_locked() const noexcept { return ended_; }
  /// Called after finish_locked(). True: the caller ends the anchor's direction. False: the stream
  /// ends it as soon as it may end.
  bool may_shut_anchor_locked() noexcept;

  // --- any thread ---

  SenderState state() const noexcept { return state_.load(std::memory_order_relaxed); }
  Carrier carrier() const noexcept { return carrier_of(state()); }
  uint64_t engine_bytes() const noexcept { return engine_.load(std::memory_order_relaxed); }
  uint64_t kernel_bytes() const noexcept { return kernel_.load(std::memory_order_relaxed); }
  /// A number that changes with everything that may end a wait for writing. A thread takes the
  /// number, tries, and waits until the number differs: it misses nothing that happens after its
  /// try.
  uint32_t sequence() const noexcept { return sequence_.load(std::memory_order_acquire); }
  /// An unused socket is writable, whatever other streams have in the ring: it was writable when it
  /// was connected, and programs rely on that (the JDK's finishConnect).
  bool has_sent_nothing() const noexcept { return engine_bytes() == 0 && kernel_bytes() == 0; }
  /// Called when the program writes through the shim. One call is enough.
  void note_writing() noexcept {
    if (!used_.load(std::memory_order_relaxed)) begin_use();
  }
  bool holds_back() const noexcept { return holds_back_.load(std::memory_order_relaxed); }
  /// How many bytes the peer has room for just now, as far as can be seen without the lock.
  uint64_t room() const noexcept { return room_behind(engine_bytes()); }
  /// Whether a send over the engine would take a byte now.
  bool can_send() noexcept;
  /// Like can_send(); if the ring has no room, asks to be told when it has.
  bool can_send_or_wants_space() noexcept;
  /// Called when the program has set or cleared TCP_CORK.
  void note_cork() noexcept;
  /// Sends what waits for more.
  void push() noexcept;
  /// Whether bytes must go out over the anchor before any others (recovery.hpp).
  bool has_replay() const noexcept {
    return engine::has_replay(state_.load(std::memory_order_seq_cst));
  }
  /// True while the peer may hand bytes back before the anchor may be used (unread_return.cpp).
  bool awaits_return() const noexcept {
    return engine::awaits_return(state_.load(std::memory_order_acquire));
  }
  /// True if nothing of this direction's end is still to be said over the engine.
  bool has_told_end() const noexcept {
    return is_told(end_mark_.load(std::memory_order_acquire));  // pairs with set_end_told()
  }

 private:
  // Stream joins the two directions. The others show one part of a stream to those whom it
  // concerns.
  friend class Stream;
  friend class Receiver;
  friend class Clearance;
  friend class StreamInput;
  friend class AnchorWatch;
  friend class ClosedStream;
  friend class DeferredStream;
  friend class StreamFailover;

  // deferred_
  static constexpr uint32_t kSwitchUp = 1;
  static constexpr uint32_t kSwitchDown = 2;
  static constexpr uint32_t kFin = 4;
  static constexpr uint32_t kReset = 8;
  static constexpr uint32_t kReplay = 0x10;
  static constexpr uint32_t kCheckAnchor = 0x20;
  static constexpr uint32_t kClose = 0x40;    // of a direction that nobody has ended
  static constexpr uint32_t kRelease = 0x80;  // send what is held back, in time
  static constexpr uint32_t kShut = 0x100;    // the anchor may be due to end

  /// Makes a step, under the lock.
  void enter(SenderState to) noexcept;
  /// Dispatcher: the peer knows where the direction has moved up.
  void on_ack() noexcept;
  /// Tries to do what is deferred. False if something is left.
  bool run_own_deferred() noexcept;
  /// Returns what is left of `bits`.
  uint32_t run_locked(uint32_t bits) noexcept;
  uint32_t run_failover_locked(uint32_t bits) noexcept;
  void begin_use() noexcept;
  void wait_for_move_locked() noexcept;
  /// How many bytes the engine would take now, when `sent` bytes have been sent.
  uint64_t room_behind(uint64_t sent) const noexcept {
    // acquire pairs with the dispatcher's release; the value publishes nothing else.
    const uint64_t bound =
        credit_.load(std::memory_order_acquire) - held_back_.load(std::memory_order_relaxed);
    // A bound that has become smaller may lie below what was sent.
    return static_cast<int64_t>(bound - sent) > 0 ? bound - sent : 0;
  }
  // ending.cpp
  /// True if the direction has ended, or is about to, and the peer may return what lies unread
  /// there.
  bool keeps_anchor_open_locked() const noexcept;
  void shut_anchor_in_time_locked() noexcept;
  bool has_sent_mark() const noexcept {
    return is_on_engine(end_mark_.load(std::memory_order_relaxed));
  }
  /// Any thread.
  void set_end_told(bool told) noexcept;
  /// Sends the end mark, if it has not been sent. False: try again later.
  bool mark_end_locked() noexcept;
  // cork.cpp
  /// True when nothing is held back any more.
  bool flush_held_locked() noexcept;
  /// Called when the direction has left the engine.
  void take_held_down_locked() noexcept;
  void look_at_cork_locked() noexcept;
  void held_changed_locked() noexcept;
  // reopening.cpp
  bool can_start_over_locked() const noexcept;
  void start_over_locked() noexcept;
  // unread_return.cpp
  bool take_back(std::span<const std::byte> bytes) noexcept;
  bool end_return(uint64_t bytes) noexcept;
  /// True if nothing is sent on the anchor except under the lock, and all of it was counted.
  bool may_hold() const noexcept;
  /// Moves the direction down. False: try again later.
  bool send_switch_down_locked() noexcept;

  std::atomic<SenderState> state_{SenderState::kernel};
  bool ended_ = false;  // by the program
  std::atomic<bool> peer_ready_{false};
  bool sent_past_shim_ = false;
  uint64_t moved_down_at_ = 0;  // ORB position behind the mark, until that is known to be posted
  std::atomic<bool> is_lost_{false};     // and the peer has been told: the stream ends here too
  std::atomic<bool> reset_sent_{false};  // the peer's answer to it does not matter
  std::atomic<EndMark> end_mark_{EndMark::unsent};
  bool lets_go_ = false;                // ends by FragmentType::closed; set before end_mark_
  uint64_t end_position_ = 0;           // ORB position behind the mark
  bool shuts_anchor_ = false;           // the anchor's end is still to come
  std::atomic<bool> end_taken_{false};  // dispatcher
  bool failed_over_ = false;
  bool corked_ = false;
  std::vector<std::byte> held_;
  uint64_t release_at_ = 0;  // nanoseconds of now_ns()
  std::atomic<bool> holds_back_{false};
  std::atomic<size_t> held_size_{0};
  std::vector<std::byte> replay_;
  size_t replay_done_ = 0;
  std::vector<std::byte> kept_;           // until it fails over; goes behind what is sent again
  bool has_kept_ = false;                 // since the connection failed
  std::atomic<bool> hold_wanted_{false};  // dispatcher
  std::atomic<bool> holds_no_more_{false};
  std::atomic<uint64_t> kernel_{0};
  std::atomic<uint64_t> engine_{0};
  std::atomic<uint64_t> credit_{0};     // written by the dispatcher
  std::atomic<uint32_t> sequence_{0};   // Stream::signal()
  std::atomic<uint64_t> held_back_{0};  // credit that the buffer sizes do not allow
  uint64_t engine_at_bind_ = 0;         // bytes over connections before this one
  uint32_t reported_flags_ = 0;         // of Stream::begin_failover()
};

}  // namespace sidestep::engine

#pragma once
/// A tracked TCP socket: what POSIX calls the open file description, on top of an engine stream.
///
/// References are counted: one for each descriptor, and one for each call that is inside. Dropping
/// the last one ends the stream, as in the kernel: a thread that sleeps in recv() keeps the
/// connection open even after another thread has closed the descriptor.
///
/// Every step on the anchor is non-blocking and runs under the stream's send or receive lock, with
/// the descriptor number that anchor() returns at that moment. Only sleeping happens outside.
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/progress/patience.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::preload {

class EventSet;
class Interruptions;
class Residue;

class Socket {
 public:
  /// Gives a socket from the pool its stream and first descriptor.
  void open(engine::Stream& stream, bool nonblocking) noexcept;
  bool try_ref() noexcept;
  void unref() noexcept;

  /// From now on, the end of the socket has to wait for hazard guards. The caller holds a
  /// reference.
  void expect_guards() noexcept { expects_guards_.store(true, std::memory_order_relaxed); }

  // --- descriptors ---
  /// True if the kernel has this socket under the number, whatever the table says.
  bool is_named_by(int fd) noexcept;
  /// Adds a descriptor that refers to this socket (dup). The caller puts it into the table.
  void add_fd() noexcept;
  /// Drops the reference of `fd`, which has been taken out of the table and which the caller is
  /// about to close.
  void remove_fd(int fd) noexcept;
  /// The same for an `fd` that was closed past the library: it names something else by now.
  void lose_fd(int fd) noexcept;
  /// Called when the descriptor lives on without this socket. Its memberships of epoll sets live on
  /// as well.
  void leave_sets() noexcept;
  /// Called when `fd` of this socket was added to an epoll set. The membership ends with the last
  /// descriptor. Returns false if there is no memory for it.
  [[nodiscard]] bool join_set(const std::shared_ptr<EventSet>& set, int fd) noexcept;

  // --- I/O; results and errno as for the system call of that name, plus kBeginAnew ---
  /// try_transmit() has transmitted `done` bytes before; they count in the result.
  ssize_t receive(const iovec* vector, int count, int flags) noexcept;
  ssize_t transmit(const iovec* vector, int count, int flags, size_t done = 0) noexcept;
  /// Serve the part of a call that an engine carrier can serve at once, under a HazardGuard. Return
  /// how many bytes were received (0: take the long way) or taken. The caller has touched the
  /// memory (engine/base/user_copy.hpp): all of it for sending, the first `near` bytes for
  /// receiving. If try_receive() needs more of it touched, it does nothing and puts the size into
  /// `more`.
  size_t try_receive(const iovec& part, size_t near, size_t& more) noexcept;
  size_t try_transmit(const iovec& part) noexcept;
  static constexpr size_t kNear = 4096;
  /// The most that is sent under one guard.
  static constexpr size_t kMostUnderGuard = size_t{64} * 1024;
  int shutdown(int how) noexcept;
  int queued_bytes(int* value) noexcept;  // FIONREAD
  /// True if TCP_INQ is set.
  bool tells_unread() noexcept;
  void set_tells_unread(bool on) noexcept { tells_unread_.store(on ? 1 : 0); }
  /// Writes what TCP_INQ asks for into the control part (`room` bytes) of a received message.
  void tell_unread(msghdr& message, size_t room) noexcept;
  /// Moves the stream to the kernel for good and waits until that is done (a second at most).
  /// Bytes that are still unread then are kept and read first: see unread_residue().
  void leave_engine(engine::Reason reason) noexcept;
  /// Does the same for a caller that goes on with the descriptor alone. It waits longer as a rule,
  /// because whatever is not on the kernel by then is lost to that caller. Returns false if
  /// something is not: the caller must not go on.
  [[nodiscard]] bool hands_over(engine::Reason reason, uint64_t seconds = 10) noexcept;
  /// True if a user of the anchor without this process's engine would find a hole in the stream, or
  /// make one: the preparations for handing it over have taken too long.
  bool is_torn() noexcept;
  /// The number of bytes that can be read only through the shim, not from the descriptor itself.
  size_t unread_residue() noexcept;

  // --- state ---
  bool nonblocking() const noexcept { return nonblocking_.load(std::memory_order_relaxed); }
  void set_nonblocking(bool value) noexcept {
    nonblocking_.store(value, std::memory_order_relaxed);
  }
  /// SO_RCVTIMEO, SO_SNDTIMEO.
  void set_timeout(int option, const timeval& value) noexcept;
  int take_error() noexcept { return stream_->errors().take(); }

  engine::Stream& stream() noexcept { return *stream_; }
  engine::Sender& sender() const noexcept { return stream_->sender(); }
  engine::Receiver& receiver() const noexcept { return stream_->receiver(); }
  int anchor() const noexcept { return stream_->anchor(); }
  /// True if the kernel's own readiness is the truth: the stream is undecided, on the kernel for
  /// good, or not used by the program yet (it does not leave the kernel before that), and no
  /// residue is left. A stream that a fork has torn off, and that has ended, is not native.
  bool is_native() noexcept;
  /// True if the anchor has bytes that poll() may have missed. While another thread of the library
  /// asks the kernel about the anchor (TCP_INFO, around a move), the kernel keeps arriving bytes
  /// apart until that thread is done. A recv() waits for that, a poll() does not; this function
  /// does.
  bool has_late_arrivals() noexcept;
  /// True if has_late_arrivals() is worth asking. Makes no system call.
  bool may_have_late_arrivals() const noexcept;
  /// True if reading and writing need nothing of the shim: the kernel does both alone, for good.
  [[gnu::always_inline]] bool is_plain() const noexcept {
    return stream_->is_kernels_for_good() && residue_ == nullptr;
  }
  /// Counts for the statistics what the kernel did. Two threads at once may count too little.
  void count_plain(bool received, size_t bytes) noexcept {
    received ? receiver().count_kernel(bytes) : sender().count_kernel(bytes);
  }
  /// Returns the whole mask of poll(2) for a socket that is not native. Callers pick the events
  /// that were asked for.
  uint32_t readiness() noexcept;

 private:
  friend class AllSockets;
  friend class SocketPool;
  struct Step {
    size_t bytes = 0;
    int error = 0;          // errno; EAGAIN: nothing now
    bool end = false;       // end of file
    bool doubtful = false;  // an end of file that may be a loss; nothing now
    bool probed = false;    // no bytes were asked for, but there are some
    bool exiting = false;   // the process ends, and the peer has been told
  };

  Step receive_step_locked(const iovec* vector, int count, size_t offset, int flags) noexcept;
  /// True if there is something to read according to SO_RCVLOWAT.
  bool has_enough() noexcept;
  /// Serves MSG_PEEK from what the engine has. `first`: nothing was peeked from the anchor before.
  void peek_engine_locked(const iovec* vector, int count, size_t offset, int flags, bool first,
                          Step& step) noexcept;
  /// True if nothing will be read beyond what is there now.
  bool nothing_follows() noexcept;
  /// `there`: how many bytes from the offset on have been touched. If that is fewer than are left,
  /// and fewer than are sent at once, the next byte is at a bad address.
  Step transmit_step_locked(const iovec* vector, int count, size_t offset, int flags,
                            size_t there) noexcept;
  /// Like try_receive(), in the middle of a call that may wait.
  size_t receive_at_once(const iovec& part) noexcept;
  static constexpr uint64_t kForever = ~uint64_t{0};  // a deadline
  /// Returns 0, EINTR, kBeginAnew, or EAGAIN when the time is up. `interruptions`: those of the
  /// whole call. `for_more`: the caller reads, and has found bytes, but not enough.
  int wait(bool for_reading, uint32_t sequence, uint64_t deadline,
           const Interruptions& interruptions, bool for_more = false) noexcept;
  /// Returns the timeout of that option in nanoseconds, 0: none. Not to be called under the
  /// stream's locks.
  uint64_t timeout(int option) noexcept;
  std::atomic<uint64_t>& timeout_of(int option) noexcept {
    return option == SO_RCVTIMEO ? receive_timeout_ : send_timeout_;
  }
  /// True if SO_LINGER demands it.
  bool resets_at_close() noexcept;
  void move_anchor(int fd) noexcept;
  /// Returns another number of this socket than `fd`, which is no longer in the table; -1: none.
  int other_number(int fd) const noexcept;
  void last_reference_gone() noexcept;
  /// Waits until the peer has everything that must come before the anchor's end. Called when no
  /// descriptor is left with which the engine could do it later. Returns false if time ran out.
  bool says_the_rest() noexcept;
  /// True if the stream is down on the kernel, except for what is unread.
  bool has_left() const noexcept {
    return !stream_->is_bound() || stream_->is_aborted() || stream_->has_left();
  }
  void leave_engine(engine::Reason reason, engine::Patience& patience) noexcept;
  /// True if the peer can't answer because it has been stopped.
  bool waits_in_vain(engine::Patience& patience, engine::Patience::Awaits what) noexcept;
  /// Hands unread bytes of the engine back to the peer, to come again through the kernel, or moves
  /// them to residue_.
  void move_unread_away() noexcept;
  /// True if none of these bytes are still under way in either direction.
  bool has_come_back() noexcept;
  struct End {
    bool marked = false;  // the peer has been told, or need not be: the anchor may go
    bool reset = false;   // the peer was told of a loss and not of an orderly end
    bool stuck = false;   // the peer can't be told: this thread has interrupted a lock holder
  };
  End end_stream() noexcept;

  using Memberships = std::vector<std::pair<std::weak_ptr<EventSet>, int>>;
  Memberships take_memberships() noexcept;
  void drop_memberships(int closing = -1) noexcept;

  std::atomic<int> references_{0};
  std::atomic<bool> expects_guards_{false};
  engine::Stream* stream_ = nullptr;  // changes only while nobody refers to or guards the socket
  std::atomic<bool> nonblocking_{false};
  std::atomic<int> tells_unread_{-1};  // -1: unknown, until someone asks for it
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> write_shut_{false};
  std::atomic<bool> was_given_up_{false};  // set by AllSockets::stop_tracking(), forever
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> receive_timeout_{kUnknown};  // nanoseconds, 0: none
  std::atomic<uint64_t> send_timeout_{kUnknown};
  // Protects changes of the anchor's number and of sets_. The table knows which numbers belong to
  // this socket, so having many of them takes no memory here.
  engine::Mutex fds_lock_;
  std::atomic<int> descriptors_{0};
  Memberships sets_;
  int private_anchor_ =
      -1;  // the anchor when every descriptor is closed but calls are still inside
  Residue* residue_ = nullptr;
  uint64_t awaited_ = 0;  // for has_come_back(): bytes that the kernel will have received by then
  Socket* next_free_ = nullptr;
  Socket* next_made_ = nullptr;  // SocketPool's list of all sockets; does not change
  // True from open() until the stream has been ended, which is longer than there are references.
  std::atomic<bool> in_use_{false};
};

}  // namespace sidestep::preload

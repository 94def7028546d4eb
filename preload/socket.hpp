#pragma once
/// A tracked TCP socket: what POSIX calls the open file description, on top of an engine stream.
///
/// Counted references: one for each descriptor, one for each call that is inside. The last one ends
/// the stream, as in the kernel: a thread that sleeps in recv() keeps the connection open although
/// another has closed the descriptor.
///
/// Every step on the anchor is non-blocking and made under the stream's send or receive lock, with
/// the descriptor number that anchor() gives at that moment; only sleeping happens outside.
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
  /// A tracked socket for a connected (or connecting) descriptor, in the table. Does nothing when
  /// the descriptor does not qualify (rules, kind of address, engine off or full). `remote`: where
  /// the descriptor is connecting to; null: getpeername() tells.
  static void track(int fd, bool accepted, bool nonblocking, const sockaddr* remote) noexcept;
  /// Before fork and exec: brings every stream down; bytes of the engine that nobody has read yet
  /// are put where parent and child share them.
  static void bring_all_down(engine::Reason reason) noexcept;
  /// Before exec: false when a standard stream of the next program would lack bytes, because they
  /// are readable through this process only. Where it is any other descriptor, which the program
  /// probably does not know of, it is only logged.
  static bool can_be_inherited() noexcept;
  /// Not `closes_descriptors`: of the library's own, which the parent has as well. Whether a stream
  /// is_torn().
  static bool after_fork_in_child(bool closes_descriptors = true) noexcept;
  /// The engine is about to end, and streams have been brought down: the kernel's are tracked no
  /// more, and whoever sleeps in a call on one of them begins anew. What is lost with the engine
  /// ends with ECONNRESET.
  static void stop_tracking() noexcept;
  /// The process ends: the peers get an end of file, as they would from the kernel.
  static void finish_all() noexcept;
  /// Some thread is in finish_all().
  static bool is_finishing() noexcept { return finishing_.load(std::memory_order_acquire); }

  /// Gives a socket from the pool its stream and first descriptor.
  void open(engine::Stream& stream, bool nonblocking) noexcept;
  bool try_ref() noexcept;
  void unref() noexcept;

  /// Visits have to be waited for at the end of the socket. By a holder of a reference.
  void expect_visitors() noexcept { expects_visitors_.store(true, std::memory_order_relaxed); }

  // --- descriptors ---
  /// Whether the kernel has this socket under the number, whatever the table says.
  bool is_named_by(int fd) noexcept;
  /// Another descriptor refers to this socket from now on (dup). The caller puts it into the table.
  void add_fd() noexcept;
  /// `fd` has been taken out of the table and is about to be closed by the caller. Drops its
  /// reference.
  void remove_fd(int fd) noexcept;
  /// If `fd` names a socket still, it was closed past the library, and names something else by now.
  static void lose_number(int fd) noexcept;

  /// The descriptor lives on without this socket, and so do its memberships of epoll sets.
  void leave_sets() noexcept;
  /// `fd` of this socket was added to an epoll set: the membership ends with the last descriptor.
  /// False: there is no memory for it.
  [[nodiscard]] bool join_set(const std::shared_ptr<EventSet>& set, int fd) noexcept;

  // --- I/O; results and errno as of the system call of that name; kBeginAnew besides ---
  /// `done` bytes were transmitted before by try_transmit(), and count in the result.
  ssize_t receive(const iovec* vector, int count, int flags) noexcept;
  ssize_t transmit(const iovec* vector, int count, int flags, size_t done = 0) noexcept;
  /// The part of a call that an engine carrier can serve at once, for a Visit: bytes read (0: take
  /// the long way), bytes taken. The memory has been touched (engine/base/user_copy.hpp): all that
  /// is read, and of what is written the `near`est bytes. `more`: so many are needed, and nothing
  /// is done.
  size_t try_receive(const iovec& part, size_t near, size_t& more) noexcept;
  size_t try_transmit(const iovec& part) noexcept;
  static constexpr size_t kNear = 4096;
  /// What is sent in one visit.
  static constexpr size_t kMostOfVisit = size_t{64} * 1024;
  int shutdown(int how) noexcept;
  int queued_bytes(int* value) noexcept;  // FIONREAD
  /// TCP_INQ is set.
  bool tells_unread() noexcept;
  void set_tells_unread(bool on) noexcept { tells_unread_.store(on ? 1 : 0); }
  /// What it makes of the control part of a message that has been received, `room` bytes.
  void tell_unread(msghdr& message, size_t room) noexcept;
  /// Moves the stream to the kernel for good and waits until that is done (a second at most).
  /// Bytes that nobody had read then are kept and read first: see unread_residue().
  void leave_engine(engine::Reason reason) noexcept;
  /// For those who go on with the descriptor alone: the same, and as a rule waits for longer,
  /// because what is not on the kernel then is lost to them. False: there is such, and they must
  /// not go on.
  [[nodiscard]] bool hands_over(engine::Reason reason, uint64_t seconds = 10) noexcept;
  /// Whoever used the anchor without this process's engine would find a hole, or make one: what has
  /// been tried before it is handed over has taken too long.
  bool is_torn() noexcept;
  /// Bytes that are readable through the shim only, and not on the descriptor itself.
  size_t unread_residue() noexcept;

  // --- state ---
  bool nonblocking() const noexcept { return nonblocking_.load(std::memory_order_relaxed); }
  void set_nonblocking(bool value) noexcept {
    nonblocking_.store(value, std::memory_order_relaxed);
  }
  /// SO_RCVTIMEO, SO_SNDTIMEO.
  void set_timeout(int option, const timeval& value) noexcept;
  int take_error() noexcept { return stream_->take_error(); }

  engine::Stream& stream() noexcept { return *stream_; }
  int anchor() const noexcept { return stream_->anchor(); }
  /// The kernel's own readiness is the truth (undecided, for good on the kernel, or not used by the
  /// program yet, which nothing leaves before; and nothing left over).
  bool is_native() noexcept;
  /// While another thread of the library asks the kernel about the anchor (TCP_INFO, around a
  /// move), the kernel keeps what arrives apart until that thread is done. A recv() waits for that,
  /// a poll() does not. This does, and says whether there are bytes.
  bool has_late_arrivals() noexcept;
  /// It is worth asking. Without a system call.
  bool may_have_late_arrivals() const noexcept;
  /// Nothing of the shim's is needed to read and write: the kernel does it alone, for good.
  [[gnu::always_inline]] bool is_plain() const noexcept {
    return stream_->is_kernels_for_good() && residue_ == nullptr;
  }
  /// Statistics of what it did. Two threads at once may count less.
  void count_plain(bool received, size_t bytes) noexcept {
    received ? stream_->count_kernel_received(bytes) : stream_->count_kernel_sent(bytes);
  }
  /// The whole mask of poll(2), for a socket that is not native: callers take what was asked for.
  uint32_t readiness() noexcept;

 private:
  friend class SocketPool;
  static std::atomic<bool> finishing_;
  struct Step {
    size_t bytes = 0;
    int error = 0;          // errno; EAGAIN: nothing now
    bool end = false;       // end of file
    bool doubtful = false;  // an end of file that may be a loss; nothing now
    bool probed = false;    // no bytes were asked for, and there are some
    bool exiting = false;   // the process ends, and the peer has been told
  };

  Step receive_step_locked(const iovec* vector, int count, size_t offset, int flags) noexcept;
  /// SO_RCVLOWAT says that there is something to read.
  bool has_enough() noexcept;
  /// MSG_PEEK, of what the engine has. `first`: none of it is from the anchor before that.
  void peek_engine_locked(const iovec* vector, int count, size_t offset, int flags, bool first,
                          Step& step) noexcept;
  /// No more than what is there will be read.
  bool nothing_follows() noexcept;
  /// `there`: bytes from the offset on that have been touched; fewer than there are, and than are
  /// sent at once, where the next is at a bad address.
  Step transmit_step_locked(const iovec* vector, int count, size_t offset, int flags,
                            size_t there) noexcept;
  /// As try_receive(), in the middle of a call that may wait.
  size_t receive_at_once(const iovec& part) noexcept;
  /// 0, or EINTR, or kBeginAnew, or EAGAIN when the time is up. `interruptions`: of the whole call.
  /// `for_more`: for reading, where bytes are there, but not enough.
  int wait(bool for_reading, uint32_t sequence, uint64_t deadline,
           const Interruptions& interruptions, bool for_more = false) noexcept;
  /// The same in nanoseconds, 0: none. Not under the stream's locks.
  uint64_t timeout(int option) noexcept;
  std::atomic<uint64_t>& timeout_of(int option) noexcept {
    return option == SO_RCVTIMEO ? receive_timeout_ : send_timeout_;
  }
  /// SO_LINGER says so.
  bool resets_at_close() noexcept;
  void move_anchor(int fd) noexcept;
  /// Another number of this socket than `fd`, which is in the table no more; -1: none.
  int other_number(int fd) const noexcept;
  void last_reference_gone() noexcept;
  /// No descriptor is left with which the engine could do it later: waits until the peer has what
  /// is to come before the anchor's end. False: it was not to be done in time.
  bool says_the_rest() noexcept;
  /// Down to the kernel, but for what is unread.
  bool has_left() const noexcept {
    return !stream_->is_bound() || stream_->is_dead() || stream_->has_left();
  }
  void leave_engine(engine::Reason reason, engine::Patience& patience) noexcept;
  /// The peer can't answer: it has been stopped.
  bool waits_in_vain(engine::Patience& patience, engine::Patience::Awaits what) noexcept;
  /// What is unread of the engine's goes back to the peer, to come by the kernel, or to residue_.
  void move_unread_away() noexcept;
  /// Nothing of that is under way any more, in either direction.
  bool has_come_back() noexcept;
  struct End {
    bool marked = false;  // the peer has been told, or need not be: the anchor may go
    bool reset = false;   // told of a loss and not of an orderly end
    bool stuck = false;   // it can't be told: this thread has interrupted one that holds the lock
  };
  End end_stream() noexcept;

  using Memberships = std::vector<std::pair<std::weak_ptr<EventSet>, int>>;
  Memberships take_memberships() noexcept;
  void drop_memberships(int closing = -1) noexcept;

  std::atomic<int> references_{0};
  std::atomic<bool> expects_visitors_{false};
  engine::Stream* stream_ = nullptr;  // changes only while nobody refers to or visits the socket
  std::atomic<bool> nonblocking_{false};
  std::atomic<int> tells_unread_{-1};  // not known before it is asked
  std::atomic<bool> read_shut_{false};
  std::atomic<bool> write_shut_{false};
  std::atomic<bool> was_given_up_{false};  // by stop_tracking(); for ever
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  std::atomic<uint64_t> receive_timeout_{kUnknown};  // nanoseconds, 0: none
  std::atomic<uint64_t> send_timeout_{kUnknown};
  // Over changes of the anchor's number and of sets_. Which numbers are this socket's the table
  // knows: to have many of them takes no memory here.
  engine::Mutex fds_lock_;
  std::atomic<int> descriptors_{0};
  Memberships sets_;
  int private_anchor_ =
      -1;  // the anchor when every descriptor is closed and calls are still inside
  Residue* residue_ = nullptr;
  uint64_t awaited_ = 0;  // has_come_back(): bytes that the kernel will have received then
  Socket* next_free_ = nullptr;
  Socket* next_made_ = nullptr;  // SocketPool's list of all; does not change
  // From open() until the stream has been ended; longer than there are references.
  std::atomic<bool> in_use_{false};
};

}  // namespace sidestep::preload

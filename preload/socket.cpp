#include "preload/socket.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/connection/connection.hpp"
#include "engine/node/node.hpp"
#include "preload/event_set.hpp"
#include "preload/fd_table.hpp"
#include "preload/residue.hpp"
#include "preload/socket_pool.hpp"
#include "preload/visit.hpp"

namespace sidestep::preload {

using engine::Carrier;
using engine::Phase;
using engine::RxHead;
namespace sys = engine::sys;

// ---- references

bool Socket::try_ref() noexcept {
  int count = references_.load(std::memory_order_relaxed);
  while (count > 0)
    if (references_.compare_exchange_weak(count, count + 1, std::memory_order_acquire,
                                          std::memory_order_relaxed))
      return true;
  return false;
}

void Socket::unref() noexcept {
  // acq_rel: everything that other threads did with the socket is done before it is taken apart.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) last_reference_gone();
}

void Socket::open(engine::Stream& stream, bool nonblocking) noexcept {
  stream_ = &stream;
  nonblocking_.store(nonblocking, std::memory_order_relaxed);
  descriptors_.store(1, std::memory_order_relaxed);
  in_use_.store(true, std::memory_order_relaxed);
  // release pairs with the acquire in try_ref(): the socket is complete.
  references_.store(1, std::memory_order_release);
}

bool Socket::says_the_rest() noexcept {
  engine::Node* const node = engine::Node::running();
  const uint64_t limit = engine::now_ns() + 1'000'000'000;
  const auto has_said = [this] {
    return stream_->phase() == Phase::kernel ? !sender().has_replay() : sender().has_told_end();
  };
  while (node != nullptr && !has_said() && engine::now_ns() < limit) {
    node->progress().poll();
    sys::sched_yield();
  }
  return has_said();
}

void Socket::last_reference_gone() noexcept {
  // relaxed: the thread that set it held a reference.
  if (expects_visitors_.load(std::memory_order_relaxed)) Visit::wait_for_end(*this);
  drop_memberships();  // of sets that it joined while its number was being closed
  engine::Node* node = engine::Node::running();
  engine::Stream& stream = *stream_;
  const auto end_own_parts = [this] {
    engine::private_fd_close(private_anchor_);
    Residue::release(residue_);
    SocketPool::give_back(*this);
  };
  // Most of a server's short connections end here, before anybody has asked for their other end.
  if (node != nullptr && !stream.is_detached() && node->streams().close_undecided(stream))
    return end_own_parts();
  // If the stream were joined to its peer after this, nobody would end it there.
  if (node != nullptr && !stream.is_bound() && !stream.is_kernels_for_good())
    node->streams().keep_on_kernel(stream);
  const End end = end_stream();
  int spare = -1;
  if (!end.marked) spare = engine::private_fd_duplicate(anchor());
  const bool whole = end.marked || spare >= 0 || says_the_rest();
  // As with unread bytes, a reset is better than an end that looks orderly.
  if (end.reset || !whole) {
    const linger now{1, 0};
    sys::setsockopt(anchor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  if (stream.is_detached()) {
    delete &stream;
  } else if (node != nullptr) {
    node->streams().close(stream, spare);
  }
  end_own_parts();
}

// ---- descriptors

bool Socket::is_named_by(int fd) noexcept {
  struct stat own {};
  struct stat other {};
  bool told = false;
  {
    const engine::SideGuard guard(sender());  // for the anchor
    told = sys::fstat(anchor(), &own) == 0 && sys::fstat(fd, &other) == 0;
  }
  return told && own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

void Socket::add_fd() noexcept {
  references_.fetch_add(1, std::memory_order_relaxed);
  descriptors_.fetch_add(1, std::memory_order_relaxed);
}

int Socket::other_number(int fd) const noexcept {
  // Searches upward from `fd`, where the next number usually is, and then from the beginning.
  for (int number = FdTable::next(fd + 1); number >= 0; number = FdTable::next(number + 1))
    if (FdTable::peek(number) == this) return number;
  for (int number = FdTable::next(0); number >= 0 && number < fd;
       number = FdTable::next(number + 1))
    if (FdTable::peek(number) == this) return number;
  return -1;
}

void Socket::remove_fd(int fd) noexcept {
  // acq_rel: the thread that removes the last descriptor sees what was done with the others.
  const bool last = descriptors_.fetch_sub(1, std::memory_order_acq_rel) == 1;
  // Done here and not with the last reference, which a visit may hold: the caller is about to give
  // the number back, and whatever another thread gets under it has memberships of its own.
  if (last) drop_memberships(fd);
  int expected = 1;
  if (last && references_.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) {
    last_reference_gone();  // nobody is inside: ends the stream before the caller closes the anchor
    return;
  }
  bool moves = false;
  {
    // Under the lock: a thread that closes the number found here has taken it out of the table
    // before it gets here.
    const std::lock_guard guard(fds_lock_);
    moves = anchor() == fd;
    if (moves) {
      // Calls that are inside, and visits, go on with another descriptor of the same socket. It is
      // possible that none is in the table yet, or any more.
      int number = last ? -1 : other_number(fd);
      if (number < 0 && private_anchor_ < 0) private_anchor_ = engine::private_fd_duplicate(fd);
      if (number < 0) number = private_anchor_;
      move_anchor(number);
    }
  }
  if (moves)
    stream_->signal(engine::kReadable | engine::kWritable);  // sleepers still poll the old number
  unref();
}

void Socket::lose_fd(int fd) noexcept {
  bool moves = false;
  {
    const std::lock_guard guard(fds_lock_);
    moves = anchor() == fd;
    if (moves) move_anchor(other_number(fd));
  }
  if (moves) stream_->signal(engine::kReadable | engine::kWritable);
  remove_fd(fd);
}

void Socket::move_anchor(int fd) noexcept {
  // Under both locks, the anchor changes between two steps of visits and of calls that are inside:
  // none of them can meet the old number in its next life.
  const engine::SideGuard sending(sender());
  const engine::SideGuard receiving(receiver());
  stream_->set_anchor(fd);
}

Socket::Memberships Socket::take_memberships() noexcept {
  const std::lock_guard guard(fds_lock_);
  return std::exchange(sets_, {});
}

void Socket::drop_memberships(int closing) noexcept {
  for (const auto& [set, fd] : take_memberships())
    if (const auto alive = set.lock()) alive->drop(fd, *this, closing);
}

void Socket::leave_sets() noexcept {
  for (const auto& [set, fd] : take_memberships())
    if (const auto alive = set.lock()) alive->release(fd, *this);
}

bool Socket::join_set(const std::shared_ptr<EventSet>& set, int fd) noexcept {
  const std::lock_guard guard(fds_lock_);
  std::erase_if(sets_, [&](const auto& entry) {
    const auto known = entry.first.lock();
    return known == nullptr || (known == set && entry.second == fd);
  });
  try {
    sets_.emplace_back(set, fd);
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}

// ---- state

namespace {
uint64_t nanoseconds(const timeval& time) noexcept {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<uint64_t>(time.tv_usec) * 1000U;
}
}  // namespace

void Socket::set_timeout(int option, const timeval& value) noexcept {
  timeout_of(option).store(nanoseconds(value), std::memory_order_relaxed);
}

uint64_t Socket::timeout(int option) noexcept {
  std::atomic<uint64_t>& known = timeout_of(option);
  uint64_t time = known.load(std::memory_order_relaxed);
  if (time != kUnknown) return time;
  // The value was set before the socket was tracked, or inherited from the listening socket. It is
  // read only when it is needed, because many sockets are closed before that.
  timeval value{};
  socklen_t length = sizeof value;
  const auto ask = [&] {
    return sys::getsockopt(anchor(), SOL_SOCKET, option, &value, &length) == 0;
  };
  bool told = false;
  if (option == SO_RCVTIMEO) {
    const engine::SideGuard guard(receiver());
    told = ask();
  } else {
    const engine::SideGuard guard(sender());
    told = ask();
  }
  const uint64_t found = told ? nanoseconds(value) : 0;
  // Unless another thread has set it meanwhile.
  return known.compare_exchange_strong(time, found, std::memory_order_relaxed) ? found : time;
}

bool Socket::resets_at_close() noexcept {
  linger value{};
  socklen_t length = sizeof value;
  return sys::getsockopt(anchor(), SOL_SOCKET, SO_LINGER, &value, &length) == 0 &&
         value.l_onoff != 0 && value.l_linger == 0;
}

bool Socket::is_native() noexcept {
  return (stream_->phase() != Phase::bound || !stream_->is_used()) &&
         (residue_ == nullptr || residue_->left() == 0) &&
         !(stream_->is_detached() && stream_->is_dead());
}

bool Socket::may_have_late_arrivals() const noexcept {
  return receiver().carrier() == Carrier::kernel && !stream_->is_detached() &&
         !stream_->is_kernels_for_good() &&
         (stream_->is_used() || stream_->clearance().is_awaited());
}

bool Socket::has_late_arrivals() noexcept {
  int queued = 0;
  return may_have_late_arrivals() && sys::ioctl(anchor(), SIOCINQ, &queued) == 0 && queued != 0;
}

// Says what the kernel's tcp_poll() says, bit for bit: the end of what the peer sends shows at
// once, even while bytes before it are unread, and together with the own end it is a hang-up.
uint32_t Socket::readiness() noexcept {
  uint32_t events = 0;
  short kernel = 0;
  const auto ask_kernel = [&](short what) {
    pollfd fd{anchor(), static_cast<short>(what | POLLRDHUP), 0};
    const timespec now{};
    sys::ppoll(&fd, 1, &now, nullptr);
    kernel = static_cast<short>(kernel | fd.revents);
  };
  receiver().mutex().lock();
  bool doubtful = false;
  // Read before the head: an end that is known, but not found at the head, would be reported
  // without POLLIN.
  bool finished = receiver().peer_has_finished();
  RxHead head = receiver().head_locked();
  if (head.kind == RxHead::Kind::kernel) {
    ask_kernel(POLLIN);
    if ((kernel & (POLLRDHUP | POLLHUP | POLLERR)) != 0 && stream_->is_bound()) {
      // As in receive(): the peer may have gone on over the engine before it ended the anchor.
      receiver().unlock();
      engine::Node::running()->progress().drain_for(*stream_);
      receiver().mutex().lock();
      finished = receiver().peer_has_finished();
      head = receiver().head_locked();
    }
    if (head.kind != RxHead::Kind::kernel || head.switch_pending)
      kernel = static_cast<short>(kernel & ~(POLLRDHUP | POLLHUP));
    if ((kernel & (POLLRDHUP | POLLHUP)) != 0 && (kernel & POLLERR) == 0 &&
        receiver().doubts_end()) {
      int queued = 0;
      sys::ioctl(anchor(), SIOCINQ, &queued);
      kernel = static_cast<short>(kernel & ~(POLLRDHUP | POLLHUP | (queued == 0 ? POLLIN : 0)));
      doubtful = true;
    }
  } else if (head.kind == RxHead::Kind::data && receiver().is_complete() &&
             !receiver().doubts_end()) {
    // The unread bytes are the engine's last, and the end may already be there, on the anchor.
    ask_kernel(0);
    kernel = static_cast<short>(kernel & POLLRDHUP);
  }
  if (residue_ != nullptr && residue_->left() != 0) events |= POLLIN;
  bool whole = true;  // every byte before the end can be taken by one call
  if (finished) {
    // libuv takes a short read together with POLLHUP for the end. The kernel tells of bytes that
    // come last over the anchor.
    bool moved_down = false;
    const uint64_t before = receiver().kernel_bytes_before_locked(moved_down);
    int queued = 0;
    if (before != 0) sys::ioctl(anchor(), SIOCINQ, &queued);
    whole = !moved_down && static_cast<uint64_t>(queued) >= before;
  }
  bool end = false;
  switch (head.kind) {
    case RxHead::Kind::kernel:
    case RxHead::Kind::empty:
      break;
    case RxHead::Kind::data:
    case RxHead::Kind::error:
      events |= POLLIN;
      break;
    case RxHead::Kind::end:
      end = true;
      break;
  }
  receiver().unlock();
  if (doubtful) engine::Node::running()->streams().question_end(*stream_);
  events |= static_cast<uint32_t>(kernel & (POLLIN | POLLRDHUP | POLLHUP | POLLERR));
  // RCV_SHUTDOWN and SEND_SHUTDOWN. An end that the engine has reported comes behind bytes that the
  // anchor may not have delivered yet.
  const bool behind_kernel = head.kind == RxHead::Kind::kernel && (events & POLLIN) == 0;
  const bool shut_and_whole = end || stream_->is_dead() ||
                              read_shut_.load(std::memory_order_relaxed) || (finished && whole) ||
                              (kernel & POLLRDHUP) != 0;
  const bool receive_shut = shut_and_whole || (finished && !behind_kernel);
  const bool send_shut = write_shut_.load(std::memory_order_relaxed);
  if (finished) events |= POLLRDHUP;
  if (receive_shut) events |= POLLIN | POLLRDHUP;
  if (shut_and_whole && send_shut) events |= POLLHUP;
  if (stream_->is_dead())
    events |= POLLOUT | POLLHUP | (stream_->errors().pending() != 0 ? POLLERR : 0);
  if (send_shut) {
    events |= POLLOUT;  // a write would not block: it fails
  } else if (sender().carrier() == Carrier::kernel) {
    ask_kernel(POLLOUT);
    if (!sender().has_replay()) events |= static_cast<uint32_t>(kernel & POLLOUT);
    if ((kernel & (POLLERR | POLLHUP)) != 0) {
      // The answer to what was sent. Without POLLERR, the error has been reported already.
      events |= static_cast<uint32_t>(kernel & POLLERR) | POLLHUP;
      // The peer has reset the stream on the engine, too, before it did so on the anchor.
      if (stream_->is_bound() && !stream_->is_dead())
        engine::Node::running()->progress().drain_for(*stream_);
      if (stream_->is_dead()) events |= POLLIN | POLLRDHUP | POLLOUT;
    }
  } else if (sender().can_send_or_wants_space() || sender().has_sent_nothing()) {
    events |= POLLOUT;
  }
  if (stream_->errors().was_told()) events &= ~static_cast<uint32_t>(POLLERR);
  constexpr uint32_t kWhateverIsThere = POLLRDHUP | POLLHUP | POLLERR;
  if (receiver().low_water() != 1 && (events & POLLIN) != 0 && (events & kWhateverIsThere) == 0 &&
      !has_enough())
    events &= ~static_cast<uint32_t>(POLLIN);
  // TCP has no bands: whatever can be read or written is normal data.
  if ((events & POLLIN) != 0) events |= POLLRDNORM;
  if ((events & POLLOUT) != 0) events |= POLLWRNORM;
  return events;
}

bool Socket::has_enough() noexcept {
  int unread = 0;
  queued_bytes(&unread);
  return static_cast<uint64_t>(unread) >=
         std::min<uint64_t>(static_cast<uint64_t>(receiver().low_water()),
                            receiver().most_unread());
}

bool Socket::tells_unread() noexcept {
  int tells = tells_unread_.load(std::memory_order_relaxed);
  if (tells >= 0) return tells != 0;
  int value = 0;
  socklen_t length = sizeof value;
  {
    const engine::SideGuard guard(receiver());  // for the anchor
    sys::getsockopt(anchor(), IPPROTO_TCP, TCP_INQ, &value, &length);
  }
  // Unless another thread has set it meanwhile.
  tells_unread_.compare_exchange_strong(tells, value != 0 ? 1 : 0, std::memory_order_relaxed);
  return tells_unread_.load(std::memory_order_relaxed) != 0;
}

void Socket::tell_unread(msghdr& message, size_t room) noexcept {
  int unread = 0;
  queued_bytes(&unread);
  if (unread == 0) {
    // As in the kernel, an end counts as something to read.
    const bool on_kernel = receiver().carrier() == Carrier::kernel && !receiver().doubts_end();
    const bool ended = receiver().peer_has_finished() ||
                       (on_kernel && engine::peer_has_ended(stream_->anchor_state()));
    unread = ended ? 1 : 0;
  }
  // Like put_cmsg(), also if there is no room for all of it.
  if (message.msg_control == nullptr || room < sizeof(cmsghdr)) {
    message.msg_flags |= MSG_CTRUNC;
    return;
  }
  const size_t length = std::min<size_t>(room, CMSG_LEN(sizeof unread));
  if (length < CMSG_LEN(sizeof unread)) message.msg_flags |= MSG_CTRUNC;
  const cmsghdr header{length, SOL_TCP, TCP_CM_INQ};
  std::byte control[CMSG_LEN(sizeof unread)];
  std::memcpy(control, &header, sizeof header);
  std::memcpy(control + sizeof header, &unread, sizeof unread);
  // If the memory can't be written, the kernel goes on without it.
  if (engine::copy_out(static_cast<std::byte*>(message.msg_control), control, length) != length)
    return;
  message.msg_controllen = std::min<size_t>(room, CMSG_SPACE(sizeof unread));
}

int Socket::queued_bytes(int* value) noexcept {
  if (receiver().may_get_from_engine()) engine::Node::running()->progress().drain_for(*stream_);
  uint64_t queued = 0;
  {
    const engine::SideGuard guard(receiver());
    // This takes the marks at the head, so that the bytes behind them count.
    const RxHead head = receiver().head_locked();
    bool whole = true;  // nothing before the engine's bytes is still under way
    bool moved_down = false;
    const uint64_t before = receiver().kernel_bytes_before_locked(moved_down);
    if (head.kind == RxHead::Kind::kernel || before != 0 || moved_down) {
      int kernel = 0;
      sys::ioctl(anchor(), SIOCINQ, &kernel);
      queued = static_cast<uint64_t>(kernel);
      whole = queued >= before;
      if (!whole && head.switch_pending) queued = std::min(queued, head.limit);
      if (whole && !moved_down) queued = before;
    }
    if (whole) queued += receiver().queued();
    if (residue_ != nullptr) queued += residue_->left();
  }
  *value = static_cast<int>(std::min<uint64_t>(queued, INT32_MAX));
  return 0;
}

int Socket::shutdown(int how) noexcept {
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) {
    errno = EINVAL;
    return -1;
  }
  // Asked before the engine may pass an end on: a second call then finds the anchor closed. A reset
  // over the engine leaves the anchor to the peer's close().
  const bool was_bound = stream_->is_bound();
  bool was_closed = stream_->is_dead();
  if (was_bound && !was_closed) {
    was_closed = stream_->anchor_state() == engine::TcpState::close;
  }
  if (how != SHUT_RD) {
    const engine::SideGuard guard(sender());
    // Both ends are known, although they may not have reached the anchor yet.
    if (sender().has_ended_locked() && receiver().peer_has_finished()) was_closed = true;
    write_shut_.store(true, std::memory_order_relaxed);
    // If the stream is on the kernel for good, the peer looks at nothing but the anchor's end.
    sender().finish_locked();
    // The anchor's FIN must not overtake the engine's end mark, nor bytes that come back.
    if (!sender().may_shut_anchor_locked()) how = how == SHUT_RDWR ? SHUT_RD : -1;
  }
  if (how == SHUT_RD || how == SHUT_RDWR) {
    read_shut_.store(true, std::memory_order_relaxed);
    receiver().shut_reading();
  }
  int result = how >= 0 ? sys::shutdown(anchor(), how) : 0;
  if (was_bound) result = was_closed ? -ENOTCONN : 0;
  stream_->signal(engine::kReadable | engine::kWritable);
  if (result == 0) return 0;
  errno = -result;
  return -1;
}

void Socket::leave_engine(engine::Reason reason) noexcept {
  engine::Patience patience(1'000'000'000);
  leave_engine(reason, patience);
}

bool Socket::hands_over(engine::Reason reason, uint64_t seconds) noexcept {
  // A peer that has no processor is worth waiting for. A peer that is stopped must not hold this
  // call up for longer than a program bears.
  engine::Patience patience(seconds * 1'000'000'000);
  leave_engine(reason, patience);
  return unread_residue() == 0 && !is_torn();
}

bool Socket::waits_in_vain(engine::Patience& patience, engine::Patience::Awaits what) noexcept {
  // A connection that may make way for another could not be used here without a lock.
  return stream_->shares_host() && patience.is_vain(*stream_->connection(), what);
}

void Socket::leave_engine(engine::Reason reason, engine::Patience& patience) noexcept {
  if (is_plain()) return;
  stream_->request_down(reason, true);
  using Awaits = engine::Patience::Awaits;
  const auto wait_until = [&](Awaits what, auto&& holds) {
    while (!holds()) {
      engine::Node::running()->progress().poll_for(*stream_);
      if (holds() || waits_in_vain(patience, what) || !patience.pause()) return;
    }
  };
  wait_until(Awaits::engine, [this] { return has_left(); });
  move_unread_away();
  // Whatever the program does next must find nothing of the engine's.
  const bool settles = residue_ == nullptr;
  wait_until(Awaits::program, [&] {
    return has_come_back() && (!settles || !stream_->is_bound() || stream_->is_dead());
  });
}

size_t Socket::unread_residue() noexcept {
  return residue_ != nullptr ? residue_->left() : 0;
}

}  // namespace sidestep::preload

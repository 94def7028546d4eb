// What a program may ask of a tracked socket: whether it is ready, how many bytes are unread, its
// time limits; and shutdown(), after which the answers are others.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/residue.hpp"
#include "preload/socket.hpp"

namespace sidestep::preload {

using engine::Carrier;
using engine::Phase;
using engine::RxHead;
namespace sys = engine::sys;

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
         !(stream_->is_detached() && stream_->is_aborted());
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
// once, even while bytes before it are unread, and together with this side's end it is a hang-up.
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
  const bool shut_and_whole = end || stream_->is_aborted() ||
                              read_shut_.load(std::memory_order_relaxed) || (finished && whole) ||
                              (kernel & POLLRDHUP) != 0;
  const bool receive_shut = shut_and_whole || (finished && !behind_kernel);
  const bool send_shut = write_shut_.load(std::memory_order_relaxed);
  if (finished) events |= POLLRDHUP;
  if (receive_shut) events |= POLLIN | POLLRDHUP;
  if (shut_and_whole && send_shut) events |= POLLHUP;
  if (stream_->is_aborted())
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
      if (stream_->is_bound() && !stream_->is_aborted())
        engine::Node::running()->progress().drain_for(*stream_);
      if (stream_->is_aborted()) events |= POLLIN | POLLRDHUP | POLLOUT;
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
  bool was_closed = stream_->is_aborted();
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

}  // namespace sidestep::preload

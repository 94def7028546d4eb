// read, write and their kin.
#include <fcntl.h>
#include <limits.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/cancellation_point.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/libc_result.hpp"
#include "preload/real.hpp"
#include "preload/tracked_call.hpp"
#include "preload/visit.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

/// Flags of calls that do not concern the bytes that the engine carries: the kernel serves them.
/// (Who sends out-of-band data brings the stream down first.)
constexpr int kKernelReceive = MSG_ERRQUEUE | MSG_OOB;

// Code that is inlined into the calls themselves has nothing to undo: a call may be canceled in
// anything that it calls as `real` or `foreign`, and at its cancellation points.

/// The most messages in one sendmmsg() or recvmmsg(): the kernel's UIO_MAXIOV.
constexpr unsigned kMostMessages = 1024;

/// What an attempt returns that has neither succeeded nor failed.
constexpr ssize_t kUntracked = -2;
constexpr ssize_t kPlain = -3;  // the kernel serves it, and the bytes are to be counted
constexpr ssize_t kMayWait = -4;

iovec one_part(const void* data, size_t size) noexcept {
  return {const_cast<void*>(data), std::min<size_t>(size, SSIZE_MAX)};
}

/// Makes one visit for try_receive(). `near`: how many bytes of the memory have been touched.
/// `more`: how many must be touched, or 0.
[[gnu::always_inline]] inline ssize_t receive_in_visit(int fd, void* data, size_t size, int flags,
                                                       size_t near, size_t& more) noexcept {
  const Visit visit(fd);
  if (!visit) return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  if (visit->is_plain()) return kPlain;
  if ((flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0) return kMayWait;
  const size_t done = visit->try_receive(one_part(data, size), near, more);
  return done != 0 ? static_cast<ssize_t>(done) : kMayWait;
}

/// Receives without waiting, if the engine has something.
[[gnu::noinline]] ssize_t try_receive(int fd, void* data, size_t size, int flags) noexcept {
  if (FdTable::peek_visitable(fd) == nullptr)
    return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  // Touched before the visit, which must not wait for a page.
  size_t near = engine::touch_near(data, std::min(size, Socket::kNear));
  for (;;) {
    size_t more = 0;
    const ssize_t now = receive_in_visit(fd, data, size, flags, near, more);
    if (more == 0) [[likely]]
      return now;
    const size_t there = engine::touch_to_write(data, more);
    if (there <= near) return kMayWait;
    near = there;
  }
}

/// Does read() and recv() on a tracked socket: at once if the engine has something, otherwise the
/// long way. Calls `foreign` if the socket is not tracked after all.
template <typename Foreign>
ssize_t receive_plain(int fd, void* data, size_t size, int flags, Foreign foreign) {
  cancellation_point();
  const ssize_t now = try_receive(fd, data, size, flags);
  if (now >= 0) return now;
  if (now == kPlain) {
    const ssize_t result = foreign();
    return (flags & MSG_PEEK) == 0 ? counted(fd, true, result) : result;
  }
  if (now == kUntracked || (flags & kKernelReceive) != 0) return foreign();
  if (!engine::is_in_user_space(data, 0)) return fail(EFAULT);
  const iovec part = one_part(data, size);
  const auto result =
      on_tracked(fd, [&](Socket& socket) { return socket.receive(&part, 1, flags); });
  return result ? *result : foreign();
}

/// Sends without waiting, as far as the engine has room: either everything, or `done` bytes, and
/// then it returns kMayWait.
[[gnu::noinline]] ssize_t try_transmit(int fd, const void* data, size_t size, int flags,
                                       size_t& done) noexcept {
  if (FdTable::peek_visitable(fd) == nullptr)
    return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  // Touched before the visit, which must not wait for a page.
  const size_t most = std::min(size, Socket::kMostOfVisit);
  const bool there = engine::touch_near(data, most) == most;
  const Visit visit(fd);
  if (!visit) return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  if (visit->is_plain()) return kPlain;
  if ((flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0 || !there) return kMayWait;
  done = visit->try_transmit({const_cast<void*>(data), most});
  return done != 0 && done == size ? static_cast<ssize_t>(done) : kMayWait;
}

/// Does write() and send() on a tracked socket.
template <typename Foreign>
ssize_t transmit_plain(int fd, const void* data, size_t size, int flags, Foreign foreign) {
  cancellation_point();
  size_t done = 0;
  const ssize_t now = try_transmit(fd, data, size, flags, done);
  if (now >= 0) return now;
  if (now == kUntracked) return foreign();
  if (now == kPlain) return counted(fd, false, foreign());
  if (!engine::is_in_user_space(data, 0)) return fail(EFAULT);
  const iovec part = one_part(data, size);
  const auto result = on_tracked(fd, [&](Socket& socket) {
    // Urgent data has no place in the engine's stream of bytes.
    if ((flags & MSG_OOB) != 0) socket.leave_engine(engine::Reason::out_of_band);
    return socket.transmit(&part, 1, flags, done);
  });
  if (result) return *result;
  return done != 0 ? static_cast<ssize_t>(done) : foreign();
}

/// Returns what is wrong with a vector as such: an errno, or 0.
int fault_of(const iovec* vector, size_t count) noexcept {
  if (count > IOV_MAX) return EINVAL;
  if (count != 0 && !engine::is_readable(vector, count * sizeof *vector)) return EFAULT;
  for (size_t i = 0; i < count; ++i) {
    if (vector[i].iov_len > SSIZE_MAX) return EINVAL;
    if (!engine::is_in_user_space(vector[i].iov_base, vector[i].iov_len)) return EFAULT;
  }
  return 0;
}

/// Returns what is wrong with a message: an errno, or 0.
int fault_of(const msghdr* message) noexcept {
  if (!engine::is_readable(message, sizeof *message)) return EFAULT;
  if (message->msg_iovlen > IOV_MAX) return EMSGSIZE;
  return fault_of(message->msg_iov, message->msg_iovlen);
}

/// True if the kernel would serve a preadv2() with these flags on a TCP socket, which differs from
/// one version to the next. Asks the kernel, on a socket that is not connected, and keeps the
/// answer for small values.
bool kernel_takes(int flags) noexcept {
  if (flags == 0) return true;
  static std::array<std::atomic<char>, 256> answers;  // 0: not known
  const bool kept = flags > 0 && static_cast<size_t>(flags) < answers.size();
  if (const char known =
          kept ? answers[static_cast<size_t>(flags)].load(std::memory_order_relaxed) : char{0};
      known != 0)
    return known == 'y';
  const int fd = sys::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return (flags & ~RWF_NOWAIT) == 0;
  char byte = 0;
  const iovec part{&byte, 1};
  const bool takes = sys::call(SYS_preadv2, fd, &part, 1, -1L, -1L, flags) == -ENOTCONN;
  sys::close(fd);
  if (kept) answers[static_cast<size_t>(flags)].store(takes ? 'y' : 'n', std::memory_order_relaxed);
  return takes;
}

/// Hands over the streams whose descriptors a message passes to another process, which knows
/// nothing of them. Returns false if some bytes of one could not be read there.
[[gnu::noinline]] bool release_passed(const msghdr* message) noexcept {
  if (!engine::answers_faults()) return true;  // there is no stream
  // The kernel refuses memory that is not there.
  if (!engine::is_readable(message, sizeof *message) || message->msg_controllen == 0 ||
      !engine::is_readable(message->msg_control, message->msg_controllen))
    return true;
  auto* all = const_cast<msghdr*>(message);
  for (cmsghdr* part = CMSG_FIRSTHDR(all); part != nullptr; part = CMSG_NXTHDR(all, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const auto* const limit = static_cast<const unsigned char*>(message->msg_control);
    const auto* const end = std::min(reinterpret_cast<const unsigned char*>(part) + part->cmsg_len,
                                     limit + message->msg_controllen);
    for (const unsigned char* at = CMSG_DATA(part); at + sizeof(int) <= end; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, at, sizeof fd);
      const SocketRef socket(fd);
      if (!socket || socket->hands_over(engine::Reason::other_process)) continue;
      engine::log(engine::LogLevel::error,
                  "a stream with unread bytes, or of which the peer has some yet, cannot "
                  "be passed to another process; sendmsg failed");
      return false;
    }
  }
  return true;
}

/// Takes `elapsed` nanoseconds off the time. Returns false when nothing is left.
bool take_off(timespec& time, uint64_t elapsed) noexcept {
  constexpr uint64_t kSecond = 1'000'000'000;
  const uint64_t limit =
      static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
  const uint64_t left = limit > elapsed ? limit - elapsed : 0;
  time = {static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
  return left != 0;
}

bool is_valid(const timespec* time) noexcept {
  return time == nullptr ||
         (time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1'000'000'000);
}

}  // namespace

// ---- receiving

SIDESTEP_EXPORT ssize_t read(int fd, void* data, size_t size) {
  // A read() of 0 bytes does not wait, unlike recv(2); and the kernel says whether `fd` is a
  // descriptor.
  if (FdTable::peek(fd) == nullptr || size == 0) [[likely]] {
    resolve_real();
    return real::read(fd, data, size);
  }
  return receive_plain(fd, data, size, 0, [=] { return real::read(fd, data, size); });
}

SIDESTEP_EXPORT ssize_t recv(int fd, void* data, size_t size, int flags) {
  if (FdTable::peek(fd) == nullptr) [[likely]] {
    resolve_real();
    return real::recv(fd, data, size, flags);
  }
  return receive_plain(fd, data, size, flags, [=] { return real::recv(fd, data, size, flags); });
}

SIDESTEP_EXPORT ssize_t recvfrom(int fd, void* data, size_t size, int flags, sockaddr* from,
                                 socklen_t* length) {
  bool served = true;
  const ssize_t result = receive_plain(fd, data, size, flags, [&] {
    resolve_real();
    served = false;
    return real::recvfrom(fd, data, size, flags, from, length);
  });
  // Leaves the address as tcp_recvmsg does.
  if (!served || result < 0 || from == nullptr) return result;
  socklen_t room = 0;
  if (length == nullptr || !engine::get_from(length, room)) return fail(EFAULT);
  if (static_cast<int>(room) < 0) return fail(EINVAL);
  return engine::put_to(length, socklen_t{0}) ? result : fail(EFAULT);
}

SIDESTEP_EXPORT ssize_t readv(int fd, const iovec* vector, int count) {
  resolve_real();
  if (is_served_by_kernel(fd)) return counted(fd, true, real::readv(fd, vector, count));
  if (const int error = fault_of(vector, static_cast<size_t>(count)); error != 0)
    return fail(error);
  // Does not wait, unlike recv(2).
  if (engine::total_length(vector, count) == 0) return 0;
  const auto result =
      on_tracked(fd, [&](Socket& socket) { return socket.receive(vector, count, 0); });
  return result ? *result : real::readv(fd, vector, count);
}

SIDESTEP_EXPORT ssize_t preadv2(int fd, const iovec* vector, int count, off_t offset, int flags) {
  resolve_real();
  // If there is an offset, or flags that the kernel does not know here, the kernel says so.
  if (FdTable::peek(fd) == nullptr || offset != -1 || !kernel_takes(flags))
    return real::preadv2(fd, vector, count, offset, flags);
  if (is_served_by_kernel(fd))
    return counted(fd, true, real::preadv2(fd, vector, count, offset, flags));
  if (const int error = fault_of(vector, static_cast<size_t>(count)); error != 0)
    return fail(error);
  if (engine::total_length(vector, count) == 0) return 0;
  const auto result = on_tracked(fd, [&](Socket& socket) {
    return socket.receive(vector, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
  });
  return result ? *result : real::preadv2(fd, vector, count, offset, flags);
}

SIDESTEP_EXPORT ssize_t preadv64v2(int fd, const iovec* vector, int count, off64_t offset,
                                   int flags) {
  return preadv2(fd, vector, count, offset, flags);
}

SIDESTEP_EXPORT ssize_t recvmsg(int fd, msghdr* message, int flags) {
  resolve_real();
  if ((flags & kKernelReceive) != 0) return real::recvmsg(fd, message, flags);
  if (is_served_by_kernel(fd)) {
    const ssize_t result = real::recvmsg(fd, message, flags);
    return (flags & MSG_PEEK) == 0 ? counted(fd, true, result) : result;
  }
  if (const int error = fault_of(message); error != 0) return fail(error);
  msghdr told{};
  told.msg_control = message->msg_control;
  const auto result = on_tracked(fd, [&](Socket& socket) {
    const ssize_t received =
        socket.receive(message->msg_iov, static_cast<int>(message->msg_iovlen), flags);
    if (received >= 0 && socket.tells_unread()) socket.tell_unread(told, message->msg_controllen);
    return received;
  });
  if (!result) return real::recvmsg(fd, message, flags);
  if (*result < 0) return *result;
  const bool said =
      engine::put_to(&message->msg_namelen, socklen_t{0}) &&
      engine::put_to(&message->msg_controllen, told.msg_controllen) &&
      engine::put_to(&message->msg_flags, told.msg_flags | (flags & MSG_CMSG_CLOEXEC));
  return said ? *result : fail(EFAULT);
}

SIDESTEP_EXPORT int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags,
                             timespec* timeout) {
  if (FdTable::peek(fd) == nullptr) {
    resolve_real();
    return real::recvmmsg(fd, messages, count, flags, timeout);
  }
  timespec left{};
  if (timeout != nullptr && !engine::get_from(timeout, left)) return static_cast<int>(fail(EFAULT));
  if (timeout != nullptr && !is_valid(&left)) return static_cast<int>(fail(EINVAL));
  const unsigned most = std::min<unsigned>(count, kMostMessages);
  uint64_t before = timeout != nullptr ? engine::now_ns() : 0;
  unsigned done = 0;
  while (done < most) {
    const int wait = done != 0 && (flags & MSG_WAITFORONE) != 0 ? MSG_DONTWAIT : 0;
    const ssize_t result = recvmsg(fd, &messages[done].msg_hdr, (flags & ~MSG_WAITFORONE) | wait);
    if (result < 0) break;
    if (!engine::put_to(&messages[done].msg_len, static_cast<unsigned>(result))) {
      errno = EFAULT;
      break;
    }
    ++done;
    // The time is checked after each message, and not while waiting for one: recvmmsg(2), BUGS.
    if (timeout == nullptr) continue;
    const uint64_t now = engine::now_ns();
    if (!take_off(left, now - std::exchange(before, now))) break;
  }
  if (done == 0 && most != 0) return -1;
  if (timeout != nullptr && done != 0 && !engine::put_to(timeout, left))
    return static_cast<int>(fail(EFAULT));
  return static_cast<int>(done);
}

SIDESTEP_EXPORT ssize_t __read_chk(int fd, void* data, size_t size, size_t room) {
  if (size > room) {
    resolve_real();
    return real::__read_chk(fd, data, size, room);  // aborts, with libc's message
  }
  return read(fd, data, size);
}

SIDESTEP_EXPORT ssize_t __recv_chk(int fd, void* data, size_t size, size_t room, int flags) {
  if (size > room) {
    resolve_real();
    return real::__recv_chk(fd, data, size, room, flags);
  }
  return recv(fd, data, size, flags);
}

SIDESTEP_EXPORT ssize_t __recvfrom_chk(int fd, void* data, size_t size, size_t room, int flags,
                                       sockaddr* from, socklen_t* length) {
  if (size > room) {
    resolve_real();
    return real::__recvfrom_chk(fd, data, size, room, flags, from, length);
  }
  return recvfrom(fd, data, size, flags, from, length);
}

// ---- sending

SIDESTEP_EXPORT ssize_t write(int fd, const void* data, size_t size) {
  if (FdTable::peek(fd) == nullptr) [[likely]] {
    // This is the engine's own write(), made by a libibverbs provider that posts by a system call.
    // While a thread holds locks it is not canceled, so libc need not prepare for that.
    if (engine::held_locks.count != 0) {
      return as_libc(sys::write(fd, data, size));
    }
    resolve_real();
    return real::write(fd, data, size);
  }
  return transmit_plain(fd, data, size, 0, [=] { return real::write(fd, data, size); });
}

SIDESTEP_EXPORT ssize_t send(int fd, const void* data, size_t size, int flags) {
  if (FdTable::peek(fd) == nullptr) [[likely]] {
    resolve_real();
    return real::send(fd, data, size, flags);
  }
  return transmit_plain(fd, data, size, flags, [=] { return real::send(fd, data, size, flags); });
}

SIDESTEP_EXPORT ssize_t sendto(int fd, const void* data, size_t size, int flags, const sockaddr* to,
                               socklen_t length) {
  // On a connected stream socket, Linux ignores the address once it has copied it.
  if (to != nullptr && FdTable::peek(fd) != nullptr) {
    if (length > sizeof(sockaddr_storage)) return fail(EINVAL);
    if (!engine::is_readable(to, length)) return fail(EFAULT);
  }
  return transmit_plain(fd, data, size, flags, [&] {
    resolve_real();
    return real::sendto(fd, data, size, flags, to, length);
  });
}

SIDESTEP_EXPORT ssize_t writev(int fd, const iovec* vector, int count) {
  resolve_real();
  if (is_served_by_kernel(fd)) return counted(fd, false, real::writev(fd, vector, count));
  if (const int error = fault_of(vector, static_cast<size_t>(count)); error != 0)
    return fail(error);
  // Does not look at the socket, unlike send(2).
  if (engine::total_length(vector, count) == 0) return 0;
  const auto result =
      on_tracked(fd, [&](Socket& socket) { return socket.transmit(vector, count, 0); });
  return result ? *result : real::writev(fd, vector, count);
}

SIDESTEP_EXPORT ssize_t pwritev2(int fd, const iovec* vector, int count, off_t offset, int flags) {
  resolve_real();
  if (FdTable::peek(fd) == nullptr || offset != -1 || !kernel_takes(flags))
    return real::pwritev2(fd, vector, count, offset, flags);
  if (is_served_by_kernel(fd))
    return counted(fd, false, real::pwritev2(fd, vector, count, offset, flags));
  if (const int error = fault_of(vector, static_cast<size_t>(count)); error != 0)
    return fail(error);
  if (engine::total_length(vector, count) == 0) return 0;
  const auto result = on_tracked(fd, [&](Socket& socket) {
    return socket.transmit(vector, count, (flags & RWF_NOWAIT) != 0 ? MSG_DONTWAIT : 0);
  });
  return result ? *result : real::pwritev2(fd, vector, count, offset, flags);
}

SIDESTEP_EXPORT ssize_t pwritev64v2(int fd, const iovec* vector, int count, off64_t offset,
                                    int flags) {
  return pwritev2(fd, vector, count, offset, flags);
}

SIDESTEP_EXPORT ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  resolve_real();
  if (FdTable::peek(fd) == nullptr)
    return release_passed(message) ? real::sendmsg(fd, message, flags) : fail(EIO);
  if (is_served_by_kernel(fd)) return counted(fd, false, real::sendmsg(fd, message, flags));
  if (const int error = fault_of(message); error != 0) return fail(error);
  const size_t name = std::min<size_t>(message->msg_namelen, sizeof(sockaddr_storage));
  if (message->msg_name != nullptr && !engine::is_readable(message->msg_name, name))
    return fail(EFAULT);
  if (message->msg_controllen != 0) {
    // The kernel judges the control data, sent without any bytes; what the kernel then says of the
    // anchor is not our business.
    msghdr control = *message;
    control.msg_iovlen = 0;
    const long judged = sys::sendmsg(fd, &control, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (judged == -EINVAL || judged == -EPERM || judged == -EFAULT)
      return fail(static_cast<int>(-judged));
  }
  const auto result = on_tracked(fd, [&](Socket& socket) {
    if ((flags & MSG_OOB) != 0) socket.leave_engine(engine::Reason::out_of_band);
    return socket.transmit(message->msg_iov, static_cast<int>(message->msg_iovlen), flags);
  });
  return result ? *result : real::sendmsg(fd, message, flags);
}

SIDESTEP_EXPORT int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  if (FdTable::peek(fd) == nullptr) {
    resolve_real();
    for (unsigned i = 0; i < std::min<unsigned>(count, kMostMessages); ++i)
      if (!release_passed(&messages[i].msg_hdr)) return static_cast<int>(fail(EIO));
    return real::sendmmsg(fd, messages, count, flags);
  }
  const unsigned most = std::min<unsigned>(count, kMostMessages);
  unsigned done = 0;
  for (; done < most; ++done) {
    const ssize_t result = sendmsg(fd, &messages[done].msg_hdr, flags);
    if (result < 0) break;
    if (!engine::put_to(&messages[done].msg_len, static_cast<unsigned>(result))) {
      errno = EFAULT;
      break;
    }
  }
  return done != 0 || most == 0 ? static_cast<int>(done) : -1;
}

// write and its kin.
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/iovec.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/cancellation_point.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/hazard_guard.hpp"
#include "preload/io_arguments.hpp"
#include "preload/libc_result.hpp"
#include "preload/real.hpp"
#include "preload/tracked_call.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

// As in shim_receive.cpp, code that is inlined into the calls themselves has nothing to undo.

/// Sends without waiting, as far as the engine has room: either everything, or `done` bytes, and
/// then it returns kMayWait.
[[gnu::noinline]] ssize_t try_transmit(int fd, const void* data, size_t size, int flags,
                                       size_t& done) noexcept {
  if (FdTable::peek_guardable(fd) == nullptr)
    return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  // Touched before the guard is taken, under which nothing may wait for a page.
  const size_t most = std::min(size, Socket::kMostUnderGuard);
  const bool there = engine::touch_near(data, most) == most;
  const HazardGuard guard(fd);
  if (!guard) return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  if (guard->is_plain()) return kPlain;
  if ((flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0 || !there) return kMayWait;
  done = guard->try_transmit({const_cast<void*>(data), most});
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
                  "a stream whose bytes are not all in the kernel cannot "
                  "be passed to another process; sendmsg failed");
      return false;
    }
  }
  return true;
}

}  // namespace

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

// read and its kin.
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
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

namespace {

/// Flags of calls that do not concern the bytes that the engine carries: the kernel serves them.
/// (Who sends out-of-band data brings the stream down first.)
constexpr int kKernelReceive = MSG_ERRQUEUE | MSG_OOB;

// Code that is inlined into the calls themselves has nothing to undo: a call may be canceled in
// anything that it calls through `real::` or `foreign`, and at its cancellation points.

/// Takes one step of try_receive() under a guard. `near`: how many bytes of the memory have been
/// touched. `more`: how many must be touched, or 0.
[[gnu::always_inline]] inline ssize_t receive_under_guard(int fd, void* data, size_t size,
                                                          int flags, size_t near,
                                                          size_t& more) noexcept {
  const HazardGuard guard(fd);
  if (!guard) return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  if (guard->is_plain()) return kPlain;
  if ((flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL)) != 0) return kMayWait;
  const size_t done = guard->try_receive(one_part(data, size), near, more);
  return done != 0 ? static_cast<ssize_t>(done) : kMayWait;
}

/// Receives without waiting, if the engine has something.
[[gnu::noinline]] ssize_t try_receive(int fd, void* data, size_t size, int flags) noexcept {
  if (FdTable::peek_guardable(fd) == nullptr)
    return FdTable::peek(fd) == nullptr ? kUntracked : kMayWait;
  // Touched before the guard is taken, under which nothing may wait for a page.
  size_t near = engine::touch_near(data, std::min(size, Socket::kNear));
  for (;;) {
    size_t more = 0;
    const ssize_t now = receive_under_guard(fd, data, size, flags, near, more);
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
  // Like tcp_recvmsg, gives no address: its length is 0.
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

#pragma once
/// Kernel calls for the library's own use.
///
/// The preloaded library defines `read`, `close`, `poll` and their kin, so inside it those names
/// mean the shim. The engine must reach the kernel and nothing else, whichever program it is linked
/// into; it therefore makes its system calls here and only here. Every function returns the result
/// or -errno, and never touches errno.
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "config/system_call.hpp"

namespace sidestep::engine::sys {

inline long word(std::nullptr_t) noexcept {
  return 0;
}
template <typename T>
long word(T value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<long>(value);
  } else {
    return static_cast<long>(value);
  }
}

template <typename... Args>
inline long call(long number, Args... args) noexcept {
  return config::system_call(number, word(args)...);
}

inline long read(int fd, void* data, size_t size) noexcept {
  return call(SYS_read, fd, data, size);
}
inline long write(int fd, const void* data, size_t size) noexcept {
  return call(SYS_write, fd, data, size);
}
inline int close(int fd) noexcept {
  return static_cast<int>(call(SYS_close, fd));
}
inline int fcntl(int fd, int command, long argument) noexcept {
  return static_cast<int>(call(SYS_fcntl, fd, command, argument));
}
inline int open(const char* path, int flags, unsigned mode = 0) noexcept {
  return static_cast<int>(call(SYS_openat, -100 /* AT_FDCWD */, path, flags, mode));
}
inline int fstat(int fd, struct stat* status) noexcept {
  return static_cast<int>(call(SYS_fstat, fd, status));
}
inline int socket(int domain, int type, int protocol) noexcept {
  return static_cast<int>(call(SYS_socket, domain, type, protocol));
}
inline int bind(int fd, const void* address, socklen_t length) noexcept {
  return static_cast<int>(call(SYS_bind, fd, address, length));
}
inline int listen(int fd, int backlog) noexcept {
  return static_cast<int>(call(SYS_listen, fd, backlog));
}
inline int connect(int fd, const void* address, socklen_t length) noexcept {
  return static_cast<int>(call(SYS_connect, fd, address, length));
}
inline int accept4(int fd, void* address, socklen_t* length, int flags) noexcept {
  return static_cast<int>(call(SYS_accept4, fd, address, length, flags));
}
inline long sendmsg(int fd, const msghdr* message, int flags) noexcept {
  return call(SYS_sendmsg, fd, message, flags);
}
inline long recvmsg(int fd, msghdr* message, int flags) noexcept {
  return call(SYS_recvmsg, fd, message, flags);
}
inline long sendto(int fd, const void* data, size_t size, int flags, const void* to,
                   socklen_t to_length) noexcept {
  return call(SYS_sendto, fd, data, size, flags, to, to_length);
}
inline long recvfrom(int fd, void* data, size_t size, int flags, void* from,
                     socklen_t* from_length) noexcept {
  return call(SYS_recvfrom, fd, data, size, flags, from, from_length);
}
inline int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  return static_cast<int>(call(SYS_getsockopt, fd, level, name, value, length));
}
inline int setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  return static_cast<int>(call(SYS_setsockopt, fd, level, name, value, length));
}
inline int getsockname(int fd, void* address, socklen_t* length) noexcept {
  return static_cast<int>(call(SYS_getsockname, fd, address, length));
}
inline int getpeername(int fd, void* address, socklen_t* length) noexcept {
  return static_cast<int>(call(SYS_getpeername, fd, address, length));
}
inline int shutdown(int fd, int how) noexcept {
  return static_cast<int>(call(SYS_shutdown, fd, how));
}
inline int eventfd(unsigned value, int flags) noexcept {
  return static_cast<int>(call(SYS_eventfd2, value, flags));
}
inline int epoll_create() noexcept {
  return static_cast<int>(call(SYS_epoll_create1, EPOLL_CLOEXEC));
}
inline int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event* event) noexcept {
  return static_cast<int>(call(SYS_epoll_ctl, epoll_fd, operation, fd, event));
}
inline int epoll_pwait(int epoll_fd, epoll_event* events, int count, int timeout_ms,
                       const sigset_t* mask) noexcept {
  return static_cast<int>(
      call(SYS_epoll_pwait, epoll_fd, events, count, timeout_ms, mask, size_t{8}));
}
/// The kernel writes the time left into its copy of `timeout` only: the caller's stays as it is.
inline int ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
                 const sigset_t* mask) noexcept {
  timespec copy{};
  if (timeout != nullptr) copy = *timeout;
  return static_cast<int>(
      call(SYS_ppoll, fds, count, timeout != nullptr ? &copy : nullptr, mask, size_t{8}));
}
inline int ioctl(int fd, unsigned long request, void* argument) noexcept {
  return static_cast<int>(call(SYS_ioctl, fd, request, argument));
}
inline int memfd_create(const char* name, unsigned flags) noexcept {
  return static_cast<int>(call(SYS_memfd_create, name, flags));
}
inline int ftruncate(int fd, long size) noexcept {
  return static_cast<int>(call(SYS_ftruncate, fd, size));
}
inline void futex_wait(void* word, uint32_t expected, const timespec* timeout) noexcept {
  call(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout, nullptr, 0);
}
inline void futex_wake(void* word, int count) noexcept {
  call(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}
inline void sched_yield() noexcept {
  call(SYS_sched_yield);
}

}  // namespace sidestep::engine::sys

#pragma once
/// What the kernel says of the arguments of calls that move bytes, before it looks at the socket.
#include <limits.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>

namespace sidestep::preload {

/// The most messages in one sendmmsg() or recvmmsg(): the kernel's UIO_MAXIOV.
inline constexpr unsigned kMostMessages = 1024;

inline iovec one_part(const void* data, size_t size) noexcept {
  return {const_cast<void*>(data), std::min<size_t>(size, SSIZE_MAX)};
}

/// Returns what is wrong with a vector as such: an errno, or 0.
int fault_of(const iovec* vector, size_t count) noexcept;
/// Returns what is wrong with a message: an errno, or 0.
int fault_of(const msghdr* message) noexcept;

/// True if the kernel would serve a preadv2() with these flags on a TCP socket, which differs from
/// one version to the next. Asks the kernel, on a socket that is not connected, and keeps the
/// answer for small values.
bool kernel_takes(int flags) noexcept;

}  // namespace sidestep::preload

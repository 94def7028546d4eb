#pragma once
/// Socket options that make a read or a write behave in ways that the engine's do not. A stream
/// that has one stays on the kernel.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "engine/base/sys.hpp"

namespace sidestep::engine {

namespace kernel_options {
struct Option {
  int level, name;
  int most;  ///< the largest value that has no effect; negative values have one
  bool is_on(int value) const noexcept { return value < 0 || value > most; }
};
/// The options that the kernel reports.
inline constexpr Option kReadable[] = {{SOL_SOCKET, SO_ZEROCOPY, 0},
                                       {SOL_SOCKET, SO_TIMESTAMP, 0},
                                       {SOL_SOCKET, SO_TIMESTAMPNS, 0},
                                       {SOL_SOCKET, SO_TIMESTAMPING, 0}};
/// SO_PEEK_OFF, which TCP has had since Linux 6.9; negative: none.
inline constexpr int kNoPeekOffset = -1;
/// A larger mark would have to fit into the window.
inline constexpr Option kLowWater = {SOL_SOCKET, SO_RCVLOWAT, 256 * 1024};
inline constexpr Option kOthers[] = {{SOL_SOCKET, SO_ATTACH_FILTER, 0},
                                     {SOL_SOCKET, SO_ATTACH_BPF, 0},
                                     {IPPROTO_TCP, TCP_REPAIR, 0},
                                     {IPPROTO_TCP, TCP_ULP, 0}};
}  // namespace kernel_options

/// Whether this setsockopt() makes the stream stay on the kernel.
inline bool needs_kernel(int level, int name, int value) noexcept {
  const auto is_it = [&](const kernel_options::Option& option) {
    return option.level == level && option.name == name && option.is_on(value);
  };
  if (level == SOL_SOCKET && name == SO_PEEK_OFF) return value > kernel_options::kNoPeekOffset;
  for (const auto& option : kernel_options::kReadable)
    if (is_it(option)) return true;
  for (const auto& option : kernel_options::kOthers)
    if (is_it(option)) return true;
  return is_it(kernel_options::kLowWater);
}

/// SO_RCVLOWAT, as the kernel has it.
inline int low_water_of(int fd) noexcept {
  int value = 1;
  socklen_t length = sizeof value;
  return sys::getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &length) == 0 ? value : 1;
}

/// Whether the socket had such an option before it became a stream: by a call before connect(), or
/// because its listening socket has it. Makes a handful of system calls. `low_water`:
/// low_water_of(fd).
inline bool needs_kernel(int fd, int low_water) noexcept {
  if (kernel_options::kLowWater.is_on(low_water)) return true;
  for (const auto& option : kernel_options::kReadable) {
    int value = 0;
    socklen_t length = sizeof value;
    if (sys::getsockopt(fd, option.level, option.name, &value, &length) == 0 && option.is_on(value))
      return true;
  }
  int offset = kernel_options::kNoPeekOffset;
  socklen_t size = sizeof offset;
  if (sys::getsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, &size) == 0 &&
      offset > kernel_options::kNoPeekOffset)
    return true;
  // The length is that of a classic filter, in instructions; other filters may not be read.
  char none = 0;
  socklen_t length = 0;
  const int result = sys::getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, &none, &length);
  return result == -EACCES || (result == 0 && length != 0);
}

}  // namespace sidestep::engine

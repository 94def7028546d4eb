#pragma once
/// What the calls on bytes begin with: who serves this descriptor?
#include <sys/types.h>

#include <cerrno>
#include <optional>

#include "preload/cancellation_point.hpp"
#include "preload/fd_table.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

/// The kernel has done it by itself on a socket that is_plain().
ssize_t counted(int fd, bool received, ssize_t result) noexcept;

/// The kernel serves the descriptor by itself: it is not tracked, or its socket is_plain().
bool is_served_by_kernel(int fd) noexcept;

/// False: `fd` is not tracked (any more).
template <typename Call>
[[gnu::noinline]] bool call_tracked(int fd, const Call& call, ssize_t& result) noexcept {
  const SocketRef socket(fd);
  if (!socket) return false;
  result = call(*socket);
  // The next call may be a visit. Not worth it where nobody has found the other end yet.
  if (socket->stream().phase() != engine::Phase::undecided) FdTable::admit_visitors(fd, *socket);
  return true;
}

/// A call on a tracked socket that may sleep there; null: it is not tracked (any more). Handlers
/// that come meanwhile run when nothing of it is left; where the kernel would restart it after
/// them, it begins anew, with whatever the descriptor is then. A cancellation point.
template <typename Call>
std::optional<ssize_t> on_tracked(int fd, const Call& call) {
  for (;;) {
    cancellation_point();
    ssize_t result = 0;
    if (!call_tracked(fd, call, result)) return std::nullopt;
    if (result >= 0 || errno != kBeginAnew) return result;
  }
}

}  // namespace sidestep::preload

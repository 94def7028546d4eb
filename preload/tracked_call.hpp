#pragma once
/// How the calls that move bytes begin: who serves this descriptor?
#include <sys/types.h>

#include <cerrno>
#include <optional>

#include "preload/cancellation_point.hpp"
#include "preload/fd_table.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

/// What an attempt returns that has neither succeeded nor failed.
inline constexpr ssize_t kUntracked = -2;
inline constexpr ssize_t kPlain = -3;  // the kernel serves it, and the bytes are to be counted
inline constexpr ssize_t kMayWait = -4;

/// Counts the bytes of a call that the kernel has served by itself on a socket that is_plain().
/// Returns `result`.
ssize_t counted(int fd, bool received, ssize_t result) noexcept;

/// True if the kernel serves the descriptor by itself: it is not tracked, or its socket is_plain().
bool is_served_by_kernel(int fd) noexcept;

/// Makes the call on the socket of `fd`. Returns false if `fd` is not tracked (any more).
template <typename Call>
[[gnu::noinline]] bool call_tracked(int fd, const Call& call, ssize_t& result) noexcept {
  const SocketRef socket(fd);
  if (!socket) return false;
  result = call(*socket);
  // Lets the next call take a hazard guard. Not worth it while nobody has found the other end yet.
  if (socket->stream().phase() != engine::Phase::undecided) FdTable::admit_guards(fd, *socket);
  return true;
}

/// Makes a call on a tracked socket, which may sleep there. Returns null if `fd` is not tracked
/// (any more). Handlers that arrive meanwhile run when nothing of the call is left; where the
/// kernel would restart the call after them, it begins anew, with whatever the descriptor is then.
/// A cancellation point.
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

#pragma once
/// poll(2) over a mixture of tracked sockets and anything else.
#include <poll.h>
#include <signal.h>

#include <cstdint>

namespace sidestep::preload {

/// True if any of the descriptors is a tracked socket, whose readiness the kernel alone may not
/// know.
[[gnu::noinline]] bool has_tracked(const pollfd* fds, nfds_t count) noexcept;

/// Like ppoll(2); `timeout` in nanoseconds, negative: forever. Returns the result, or -1 with
/// errno.
[[gnu::noinline]] int poll_mixed(pollfd* fds, nfds_t count, int64_t timeout,
                                 const sigset_t* mask) noexcept;

}  // namespace sidestep::preload

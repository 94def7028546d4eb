#pragma once
/// Ways of a program to wait for its streams that the shim does not see: memberships of epoll sets
/// that a ring of io_uring makes (libuv's do), and sets that were made by raw system calls.
/// Readiness of the engine would not be told there. A process that has such means keeps a stream on
/// the kernel until it has waited for it, or registered it, where it is seen.
#include <optional>

namespace sidestep::preload {

/// From now on the engine asks before a stream is moved that nobody was seen to wait for.
void watch_for_unseen_waiting() noexcept;
/// The process has made a ring, whatever becomes of its descriptor.
void note_ring() noexcept;
/// Looks at each descriptor of the process that the library does not know. Nothing: it can't, now.
std::optional<bool> may_wait_unseen() noexcept;

}  // namespace sidestep::preload

#pragma once
/// Ways in which a program can wait for its streams unseen by the shim: epoll memberships that an
/// io_uring ring makes (libuv's do), and epoll sets made by raw system calls. The engine's
/// readiness would not be reported there. In a process that has such means, a stream stays on the
/// kernel until the program has waited for it, or registered it, where the shim sees it.
#include <optional>

namespace sidestep::preload {

/// Makes the engine ask, from now on, before it moves a stream that nobody was seen to wait for.
void watch_for_unseen_waiting() noexcept;
/// Called when the process has made a ring, whatever becomes of its descriptor.
void note_ring() noexcept;
/// Looks at each descriptor of the process that the library does not know. Returns nothing if that
/// is not possible now.
std::optional<bool> may_wait_unseen() noexcept;

}  // namespace sidestep::preload

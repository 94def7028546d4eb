#pragma once
/// The part of syscall() that concerns streams and epoll sets.

namespace sidestep::preload {

/// Returns true if the shim's function of that name has made the call; `result` is what it
/// returned, with errno. Returns false if it is none of these calls, or the kernel's business
/// alone. `words`: six arguments.
bool route_io_syscall(long number, const long* words, long& result);

}  // namespace sidestep::preload

#pragma once
/// What syscall() does of the calls that concern streams and epoll sets.

namespace sidestep::preload {

/// True: it was made by the shim's function of that name, whose result it is, with errno. False: it
/// is none of these, or the kernel's business alone. `words`: six arguments.
bool route_io_syscall(long number, const long* words, long& result);

}  // namespace sidestep::preload

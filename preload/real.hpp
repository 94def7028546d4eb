#pragma once
/// The next definition of every interposed call: libc's, or that of another preloaded library.
///
/// `real::read(fd, data, size)` reads like what it is. All pointers are resolved together, by the
/// library's constructor or by the first interposed call, whichever comes first (other libraries'
/// constructors run before ours). Resolving twice at once is harmless: both store the same values.
#include <aio.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace sidestep::preload {

namespace real {
#define CALL(type, name, parameters) extern type(*name) parameters;
#include "preload/calls.def"
#undef CALL
}  // namespace real

/// Resolves real::*. Cheap when done.
void resolve_real_slow() noexcept;
extern std::atomic<bool> g_resolved;
inline void resolve_real() noexcept {
  // acquire pairs with the release at the end of resolve_real_slow().
  if (!g_resolved.load(std::memory_order_acquire)) resolve_real_slow();
}

}  // namespace sidestep::preload

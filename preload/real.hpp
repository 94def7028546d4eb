#pragma once
/// The next definition of every interposed call: libc's, or that of another preloaded library.
///
/// `real::read(fd, data, size)` reads like what it is. All pointers are resolved together, by the
/// library's constructor or by the first interposed call, whichever comes first (other libraries'
/// constructors run before ours). Resolving twice at once is harmless: both store the same values.
/// No pointer is ever null: where there is no next definition, it leads to a MissingCall.
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

#include "preload/missing_call.hpp"

namespace sidestep::preload {

namespace real {
#define CALL(type, name, need, parameters) extern type(*name) parameters;
#include "preload/calls.def"
#undef CALL

/// True if the C library lacks the function behind this pointer of real::.
template <typename Pointer>
bool is_missing(Pointer call) noexcept {
  return call == MissingCall<Pointer, false>::call || call == MissingCall<Pointer, true>::call;
}
}  // namespace real

/// Resolves real::*. Cheap when done.
void resolve_real_slow() noexcept;
extern std::atomic<bool> g_resolved;
inline void resolve_real() noexcept {
  // acquire pairs with the release at the end of resolve_real_by().
  if (!g_resolved.load(std::memory_order_acquire)) resolve_real_slow();
}

/// Returns the name of a required function that the C library lacks; null: it lacks none.
const char* missing_required_call() noexcept;

/// Resolves real::* by `find`, which returns null for what is missing. For tests; everybody else
/// takes what the dynamic linker finds.
void resolve_real_by(void* (*find)(const char* name)) noexcept;

}  // namespace sidestep::preload

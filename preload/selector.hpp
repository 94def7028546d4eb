#pragma once
/// select() over a mixture of descriptors.
#include <sys/select.h>

#include <csignal>
#include <cstdint>

namespace sidestep::preload {

/// True if `fd` is in the set, which may be of any size: programs with more than FD_SETSIZE
/// descriptors allocate longer ones. A null set is empty.
inline bool is_set(int fd, const fd_set* set) noexcept {
  if (set == nullptr) return false;
  return (reinterpret_cast<const unsigned long*>(set)[fd / 64] >> (fd % 64) & 1U) != 0;
}

/// select() in terms of poll_mixed(), with the same `timeout`, `mask` and errors, and with the
/// event masks that select(2) documents.
[[gnu::noinline]] int select_mixed(int count, fd_set* reads, fd_set* writes, fd_set* excepts,
                                   int64_t timeout, const sigset_t* mask) noexcept;

}  // namespace sidestep::preload

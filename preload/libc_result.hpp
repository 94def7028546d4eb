#pragma once
/// How the results of the library's own system calls are reported to the program.
#include <cerrno>

namespace sidestep::preload {

/// Returns -1 and sets errno.
inline int fail(int error) noexcept {
  errno = error;
  return -1;
}

/// Converts a result of the kernel, which is -errno for an error, to what the C library returns.
inline long as_libc(long result) noexcept {
  constexpr long kMostErrno = 4095;
  return result >= 0 || result < -kMostErrno ? result : fail(static_cast<int>(-result));
}

}  // namespace sidestep::preload

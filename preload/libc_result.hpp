#pragma once
/// How the library's own system calls are told to the program.
#include <cerrno>

namespace sidestep::preload {

/// -1, with errno.
inline int fail(int error) noexcept {
  errno = error;
  return -1;
}

/// `result` of the kernel's, which is -errno for an error, as the C library tells it.
inline long as_libc(long result) noexcept {
  constexpr long kMostErrno = 4095;
  return result >= 0 || result < -kMostErrno ? result : fail(static_cast<int>(-result));
}

}  // namespace sidestep::preload

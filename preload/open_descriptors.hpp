#pragma once
/// The descriptors of this process, as /proc has them.
#include <fcntl.h>
#include <sys/syscall.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "engine/base/sys.hpp"

namespace sidestep::preload {

/// Calls `use` with each of them until it says true, which is the result. Nothing: there is no
/// /proc, or no descriptor to read it by. Takes microseconds for each.
template <typename Use>
std::optional<bool> any_open_descriptor(const Use& use) noexcept {
  namespace sys = engine::sys;
  // linux_dirent64, which no header of libc's has: inode, offset, size of the entry, type, name.
  constexpr size_t kSize = 16;
  constexpr size_t kName = 19;
  const int directory = sys::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return std::nullopt;
  alignas(8) char entries[8192];
  bool found = false;
  for (long got = 1; got > 0 && !found;) {
    got = sys::call(SYS_getdents64, directory, entries, sizeof entries);
    for (long at = 0; at < got && !found;) {
      uint16_t size = 0;
      std::memcpy(&size, entries + at + kSize, sizeof size);
      const char* const name = entries + at + kName;
      int fd = -1;
      const auto end = std::from_chars(name, name + std::strlen(name), fd);
      found = end.ec == std::errc() && *end.ptr == '\0' && fd != directory && use(fd);
      at += size;
    }
  }
  sys::close(directory);
  return found;
}

}  // namespace sidestep::preload

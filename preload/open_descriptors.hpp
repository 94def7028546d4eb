#pragma once
/// The open descriptors of this process, as /proc lists them.
#include <fcntl.h>
#include <sys/syscall.h>

#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>

#include "engine/base/sys.hpp"

namespace sidestep::preload {

/// Calls `use` with each descriptor until it returns true, which is then the result. Returns
/// nothing if there is no /proc, or no descriptor to read it by. Takes microseconds per descriptor.
template <typename Use>
std::optional<bool> any_open_descriptor(const Use& use) noexcept {
  namespace sys = engine::sys;
  // linux_dirent64, which no libc header declares: inode, offset, size of the entry, type, name.
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

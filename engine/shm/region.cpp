#include "engine/shm/region.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <utility>

#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace sidestep::engine::shm {

Region::~Region() {
  if (base_ != nullptr) munmap(base_, kOrbOffset + 2 * orb_size_);
  close_fd();
}

Region::Region(Region&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      orb_size_(other.orb_size_),
      fd_(std::exchange(other.fd_, -1)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(orb_size_, other.orb_size_);
  std::swap(fd_, other.fd_);
  return *this;
}

void Region::close_fd() noexcept {
  if (fd_ >= 0) private_fd_close(fd_);
  fd_ = -1;
}

bool Region::map(int fd, size_t orb_size, int protection) noexcept {
  const size_t reach = kOrbOffset + 2 * orb_size;
  void* base = mmap(nullptr, reach, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return false;
  auto* bytes = static_cast<std::byte*>(base);
  const bool mapped =
      mmap(bytes, kOrbOffset + orb_size, protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED &&
      mmap(bytes + kOrbOffset + orb_size, orb_size, protection, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(kOrbOffset)) != MAP_FAILED;
  if (!mapped) {
    munmap(base, reach);
    return false;
  }
  // A child of fork shares no channel with the peer; without this it would keep the memory alive.
  madvise(base, reach, MADV_DONTFORK);
  base_ = bytes;
  orb_size_ = orb_size;
  return true;
}

std::optional<Region> Region::create(size_t orb_size) noexcept {
  Region region;
  const int fd = sys::memfd_create("sidestep", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    log(LogLevel::warn, "shared memory: memfd_create failed: %s", std::strerror(-fd));
    return std::nullopt;
  }
  region.fd_ = private_fd_adopt(fd);
  const int sized = sys::ftruncate(region.fd_, static_cast<long>(region_size(orb_size)));
  if (sized < 0 || !region.map(region.fd_, orb_size, PROT_READ | PROT_WRITE)) {
    log(LogLevel::warn, "shared memory: %zu bytes cannot be mapped: %s", region_size(orb_size),
        std::strerror(sized < 0 ? -sized : errno));
    return std::nullopt;
  }
  // Linux before 5.1 has no FUTURE_WRITE; there a buggy peer of the same user could map it
  // writable.
  sys::fcntl(region.fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  const int sealed = sys::fcntl(region.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  if (sealed < 0) {
    log(LogLevel::warn, "shared memory: a region cannot be sealed: %s", std::strerror(-sealed));
    return std::nullopt;
  }
  return region;
}

std::optional<Region> Region::map_peer(int fd, size_t orb_size) noexcept {
  struct stat status {};
  const int seals = sys::fcntl(fd, F_GET_SEALS, 0);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || sys::fstat(fd, &status) != 0 ||
      static_cast<size_t>(status.st_size) != region_size(orb_size)) {
    log(LogLevel::warn, "shared memory: a peer offered an unsealed or wrongly sized region");
    return std::nullopt;
  }
  Region region;
  if (!region.map(fd, orb_size, PROT_READ)) {
    log(LogLevel::warn, "shared memory: a peer's region cannot be mapped: %s",
        std::strerror(errno));
    return std::nullopt;
  }
  return region;
}

}  // namespace sidestep::engine::shm

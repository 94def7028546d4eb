#pragma once
/// A mapped memfd of one direction: writable by its owner, read-only at the peer (shm/layout.hpp).
#include <cstddef>
#include <optional>
#include <span>

#include "engine/shm/layout.hpp"

namespace sidestep::engine::shm {

class Region {
 public:
  Region() = default;
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  Region(const Region&) = delete;

  /// Creates a memfd, sealed against any change of size and against further writable mappings.
  /// nullopt if the kernel refuses (logged with its errno).
  static std::optional<Region> create(size_t orb_size) noexcept;
  /// Maps a peer's memfd read-only after checking its size and seals: a file that its owner could
  /// shorten would kill this process with SIGBUS. Does not take ownership of `fd`.
  static std::optional<Region> map_peer(int fd, size_t orb_size) noexcept;

  int fd() const noexcept { return fd_; }
  void close_fd() noexcept;
  Control& control() const noexcept { return *reinterpret_cast<Control*>(base_); }
  NapWords& nap(uint32_t stream) const noexcept {
    return reinterpret_cast<NapWords*>(base_ + kNapsOffset)[stream % kNaps];
  }
  Descriptor* descriptors() const noexcept {
    return reinterpret_cast<Descriptor*>(base_ + kControlSize);
  }
  /// The ORB; the same bytes are mapped again behind its end.
  std::span<std::byte> orb() const noexcept { return {base_ + kOrbOffset, orb_size_}; }

 private:
  bool map(int fd, size_t orb_size, int protection) noexcept;

  std::byte* base_ = nullptr;
  size_t orb_size_ = 0;
  int fd_ = -1;
};

}  // namespace sidestep::engine::shm

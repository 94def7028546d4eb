#pragma once
/// Memory that the adapter reads and writes: mapped, pinned and registered.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engine/verbs/library.hpp"

namespace sidestep::engine::verbs {

/// Returns how many bytes this process may pin, from RLIMIT_MEMLOCK; UINT64_MAX if there is no
/// limit (CAP_IPC_LOCK).
uint64_t pinnable_bytes() noexcept;

/// With less pinnable memory than this, verbs are not used at all.
inline constexpr uint64_t kLeastPinned = uint64_t{2} << 20;

/// How much of the pinnable memory the pool and each ring get: no more than was asked for.
struct PinPlan {
  uint64_t pool;
  uint64_t ring;
};
PinPlan plan_pinned(uint64_t pinnable, uint64_t pool_size, uint64_t orb_size) noexcept;

/// A registered region. If `mirrored`, it is mapped twice in a row, so that a ring is contiguous
/// for the copying thread; the adapter knows the first mapping only.
class Memory {
 public:
  /// Returns nullopt if the kernel or the device refuses; errno says why.
  static std::optional<Memory> create(const Library& library, ibv_pd* domain, size_t size,
                                      bool mirrored) noexcept;
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&&) = delete;
  Memory(const Memory&) = delete;

  std::span<std::byte> bytes() const noexcept { return {base_, size_}; }
  uint32_t lkey() const noexcept { return region_->lkey; }

 private:
  explicit Memory(const Library& library) noexcept : ibv_(&library) {}

  const Library* ibv_;
  std::byte* base_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
  ibv_mr* region_ = nullptr;
};

}  // namespace sidestep::engine::verbs

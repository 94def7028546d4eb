#include "engine/verbs/memory.hpp"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "engine/base/sys.hpp"

namespace sidestep::engine::verbs {
namespace {

bool may_lock_everything() noexcept {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (sys::call(SYS_capget, &header, data) < 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

/// Maps `size` bytes of a memory file twice in a row. On failure returns null and sets errno.
std::byte* map_mirrored(size_t size) noexcept {
  const int fd = sys::memfd_create("sidestep-orb", MFD_CLOEXEC);
  if (fd < 0) {
    errno = -fd;
    return nullptr;
  }
  std::byte* base = nullptr;
  if (sys::ftruncate(fd, static_cast<long>(size)) >= 0) {
    void* const reach =
        mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reach != MAP_FAILED) {
      base = static_cast<std::byte*>(reach);
      constexpr int kAccess = PROT_READ | PROT_WRITE;
      if (mmap(base, size, kAccess, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
          mmap(base + size, size, kAccess, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const int error = errno;
        munmap(reach, 2 * size);
        errno = error;
        base = nullptr;
      }
    }
  }
  sys::close(fd);
  return base;
}

/// Maps `size` bytes of private memory, in huge pages if the kernel has them. These save page
/// faults when the memory is pinned, and entries that translate its addresses. Private memory is
/// safe because no child gets it.
std::byte* map_plain(size_t size, size_t& mapped) noexcept {
  constexpr size_t kHugePage = size_t{2} << 20;
  mapped = size + kHugePage;
  void* const area = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(area);
  const uintptr_t aligned = (start + kHugePage - 1) & ~(kHugePage - 1);
  // The parts before and behind go back at once; then the mapping is exactly `size` bytes long.
  if (aligned != start) munmap(area, aligned - start);
  const uintptr_t end = aligned + ((size + 4095) & ~size_t{4095});
  if (end != start + mapped) munmap(reinterpret_cast<void*>(end), start + mapped - end);
  mapped = end - aligned;
  madvise(reinterpret_cast<void*>(aligned), mapped, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

uint64_t pinnable_bytes() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      may_lock_everything())
    return UINT64_MAX;
  return limit.rlim_cur;
}

PinPlan plan_pinned(uint64_t pinnable, uint64_t pool_size, uint64_t orb_size) noexcept {
  // Half is for the pool. The other half is for rings, of which several must fit, and for queues.
  return {std::min(pool_size, pinnable / 2),
          std::min(orb_size, std::bit_floor(std::max<uint64_t>(pinnable / 16, 64 * 1024)))};
}

std::optional<Memory> Memory::create(const Library& library, ibv_pd* domain, size_t size,
                                     bool mirrored) noexcept {
  Memory memory(library);
  memory.mapped_ = 2 * size;
  memory.base_ = mirrored ? map_mirrored(size) : map_plain(size, memory.mapped_);
  if (memory.base_ == nullptr) return std::nullopt;
  memory.size_ = size;
  // The adapter's view stays with this process: a child gets neither the mapping nor the pages.
  madvise(memory.base_, memory.mapped_, MADV_DONTFORK);
  memory.region_ = library.ibv_reg_mr(domain, memory.base_, size, IBV_ACCESS_LOCAL_WRITE);
  if (memory.region_ == nullptr) {
    if (errno == 0) errno = ENOMEM;
    return std::nullopt;
  }
  return memory;
}

Memory::Memory(Memory&& other) noexcept
    : ibv_(other.ibv_),
      base_(std::exchange(other.base_, nullptr)),
      size_(other.size_),
      mapped_(other.mapped_),
      region_(std::exchange(other.region_, nullptr)) {}

Memory::~Memory() {
  const int error = errno;
  if (region_ != nullptr) ibv_->ibv_dereg_mr(region_);
  if (base_ != nullptr) munmap(base_, mapped_);
  errno = error;
}

}  // namespace sidestep::engine::verbs

#include "engine/base/heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <new>

#include "engine/base/lock.hpp"

namespace sidestep::engine {
namespace {

// Mappings begin at a multiple of this, and their lengths are multiples of it. It is the largest
// page size there is, so that the pages of any system fit.
constexpr size_t kGrain = 64 << 10;
constexpr size_t kLine = 64;
constexpr unsigned kArenas = 4;

// 16, 32, 48 and 64 bytes, then 1.5 times and twice each power of two.
constexpr unsigned kFine = 4;

constexpr size_t size_of(unsigned index) {
  if (index < kFine) return 16 * (index + 1);
  const unsigned step = index - kFine;
  return (kLine << (step / 2)) / 2 * (step % 2 == 0 ? 3 : 4);
}

constexpr unsigned index_of(size_t size) {
  if (size <= kLine) return static_cast<unsigned>(std::max<size_t>(size, 1) - 1) / 16;
  const auto power = static_cast<unsigned>(std::bit_width(size - 1)) - 1;  // 2^power < size
  const bool upper = size > (size_t{3} << (power - 1));
  return kFine + 2 * (power - static_cast<unsigned>(std::countr_zero(kLine))) + (upper ? 1 : 0);
}

constexpr unsigned kSizes = index_of(kLargestShared) + 1;
static_assert(size_of(kSizes - 1) == kLargestShared && index_of(65) == kFine && size_of(4) == 96);

constexpr size_t round_up(size_t size) {
  return (size + kGrain - 1) & ~(kGrain - 1);
}

struct Free {
  Free* next;
};

struct Sizes {
  Free* free = nullptr;
  std::byte* fresh = nullptr;  // the part of the newest slab that is not cut yet
  std::byte* end = nullptr;
};

/// Threads are spread over several arenas, so that they seldom meet.
struct alignas(kLine) Arena {
  Mutex lock;
  std::array<Sizes, kSizes> sizes;
};

/// Precedes every slab, and every block that is not shared. A slab has as many blocks of one size
/// as there is room for up to the next multiple of kGrain.
struct alignas(kLine) Header {
  Arena* arena;   // null: not shared
  size_t length;  // in a slab, of each block; else of the mapping
};

constinit std::array<Arena, kArenas> g_arenas;
constinit std::atomic<unsigned> g_next_arena{0};
constinit thread_local Arena* g_mine = nullptr;

Header& header_of(void* block) {
  // A block begins after its header, and at most kGrain after it.
  const auto address = reinterpret_cast<uintptr_t>(block) - 1;
  return *reinterpret_cast<Header*>(address & ~(kGrain - 1));
}

/// Uses libc's mmap(), which a sanitizer sees: it has to know that memory at a reused address is
/// new.
std::byte* map_anywhere(size_t length) {
  void* const base =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return base != MAP_FAILED ? static_cast<std::byte*>(base) : nullptr;
}

constexpr size_t kReserve = 4 << 20;  // of addresses; of memory only as far as it is used
/// Set once; `g_reserve_used` only grows.
constinit std::atomic<std::byte*> g_reserve{nullptr};
constinit std::atomic<size_t> g_reserve_used{0};

/// Returns zeroed memory; `length` is a multiple of kGrain. Refuses large requests, whose callers
/// have to do without the memory.
std::byte* take_from_reserve(size_t length) {
  // acquire pairs with the release in heap_keep_reserve().
  std::byte* const reserve = g_reserve.load(std::memory_order_acquire);
  size_t used = g_reserve_used.load(std::memory_order_relaxed);
  do {
    if (reserve == nullptr || length > kReserve / 8 || length > kReserve - used) return nullptr;
  } while (!g_reserve_used.compare_exchange_weak(used, used + length, std::memory_order_relaxed));
  return reserve + used;
}

/// Returns zeroed memory; `length` is a multiple of kGrain.
std::byte* map_new(size_t length) {
  const auto past_grain = [](const std::byte* at) {
    return reinterpret_cast<uintptr_t>(at) & (kGrain - 1);
  };
  std::byte* const base = map_anywhere(length);
  if (base == nullptr || past_grain(base) == 0) return base;
  // The kernel usually maps downward: below a mapping that ends as high as possible, the next one
  // fits.
  munmap(base, length);
  std::byte* const wider = map_anywhere(length + kGrain);
  if (wider == nullptr) return nullptr;
  const size_t behind = past_grain(wider);
  std::byte* const begin = wider + kGrain - behind;
  munmap(wider, kGrain - behind);
  if (behind != 0) munmap(begin + length, behind);
  return begin;
}

std::byte* map(size_t length) {
  std::byte* const base = map_new(length);
  return base != nullptr ? base : take_from_reserve(length);
}

void* allocate_apart(size_t size, size_t alignment) {
  if (alignment > kGrain || size > (size_t{1} << 46)) return nullptr;
  const size_t offset = std::max(alignment, sizeof(Header));
  const size_t length = round_up(offset + size);
  std::byte* const base = map(length);
  if (base == nullptr) return nullptr;
  new (base) Header{nullptr, length};
  return base + offset;
}

Arena& lock_an_arena() {
  if (g_mine == nullptr)
    g_mine = &g_arenas[g_next_arena.fetch_add(1, std::memory_order_relaxed) % kArenas];
  const auto first = static_cast<unsigned>(g_mine - g_arenas.data());
  for (unsigned i = 0; i < kArenas; ++i) {
    Arena& arena = g_arenas[(first + i) % kArenas];
    if (arena.lock.try_lock()) return arena;
  }
  g_mine->lock.lock();
  return *g_mine;
}

}  // namespace

void* heap_allocate(size_t size, size_t alignment) noexcept {
  if (size > kLargestShared || alignment > kLine) return allocate_apart(size, alignment);
  // Blocks of some sizes straddle two cache lines; those whose size is a power of two do not.
  if (alignment > 16) size = std::bit_ceil(std::max(size, kLine));
  const unsigned index = index_of(size);
  Arena& arena = lock_an_arena();
  const std::lock_guard guard(arena.lock, std::adopt_lock);
  Sizes& sizes = arena.sizes[index];
  void* block = sizes.free;
  if (block != nullptr) {
    sizes.free = sizes.free->next;
  } else {
    const size_t block_size = size_of(index);
    if (static_cast<size_t>(sizes.end - sizes.fresh) < block_size) {
      const size_t length = round_up(sizeof(Header) + block_size);
      if (std::byte* const slab = map(length); slab != nullptr) {
        new (slab) Header{&arena, block_size};
        sizes.fresh = slab + sizeof(Header);
        sizes.end = slab + length;
      }
    }
    if (static_cast<size_t>(sizes.end - sizes.fresh) >= block_size) {
      block = sizes.fresh;
      sizes.fresh += block_size;
    }
  }
  return block;
}

void heap_release(void* block) noexcept {
  if (block == nullptr) return;
  Header& header = header_of(block);
  if (header.arena == nullptr) {
    munmap(&header, header.length);
    return;
  }
  Sizes& sizes = header.arena->sizes[index_of(header.length)];
  const std::lock_guard guard(header.arena->lock);
  sizes.free = new (block) Free{sizes.free};
}

void heap_keep_reserve() noexcept {
  if (g_reserve.load(std::memory_order_relaxed) != nullptr) return;
  std::byte* const reserve = map_new(kReserve);
  std::byte* none = nullptr;
  if (reserve != nullptr &&
      !g_reserve.compare_exchange_strong(none, reserve, std::memory_order_release,
                                         std::memory_order_relaxed))
    munmap(reserve, kReserve);
}

bool heap_is_short() noexcept {
  return g_reserve_used.load(std::memory_order_relaxed) != 0;
}

void heap_after_fork() noexcept {
  for (Arena& arena : g_arenas) {
    if (!arena.lock.is_locked()) continue;
    arena.sizes.fill({});
    arena.lock.reset_after_fork();
  }
}

}  // namespace sidestep::engine

#include "engine/heap.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <new>

#include "engine/lock.hpp"

namespace sidestep::engine {
namespace {

constexpr size_t kSlab = 1 << 20;  // slabs and mappings begin at a multiple of this
constexpr size_t kLine = 64;
constexpr size_t kMostAligned = 64 << 10;
constexpr size_t kPage = 64 << 10;  // the largest that there are, so that any system's will do
constexpr unsigned kArenas = 8;

// 16, 32, 48 and 64 bytes, then one and a half and two of each power of two.
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

struct Free {
  Free* next;
};

struct Sizes {
  Free* free = nullptr;
  std::byte* fresh = nullptr;  // of the newest slab, what was not cut yet
  std::byte* end = nullptr;
};

/// Threads are spread over some, so that they seldom meet.
struct alignas(kLine) Arena {
  Mutex lock;
  std::array<Sizes, kSizes> sizes;
};

/// In front of every slab and every mapping.
struct alignas(kLine) Header {
  Arena* arena;   // null: a mapping of one block
  size_t length;  // a slab: of its blocks. A mapping: of all of it
};

constinit std::array<Arena, kArenas> g_arenas;
constinit std::atomic<unsigned> g_next_arena{0};
constinit thread_local Arena* g_mine = nullptr;

Header& header_of(void* block) {
  // A block never begins at a header.
  const auto address = reinterpret_cast<uintptr_t>(block) - 1;
  return *reinterpret_cast<Header*>(address & ~(kSlab - 1));
}

/// Zeros, from a multiple of kSlab on.
Header* map(size_t length, Arena* arena, size_t length_noted) {
  const size_t rounded = (length + kPage - 1) & ~(kPage - 1);
  const size_t reach = rounded + kSlab;
  // libc's, which a sanitizer sees: memory that comes back is not what it was.
  void* const base =
      mmap(nullptr, reach, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(base);
  const uintptr_t aligned = (begin + kSlab - 1) & ~(kSlab - 1);
  if (aligned != begin) munmap(base, aligned - begin);
  const uintptr_t end = aligned + rounded;
  if (begin + reach != end) munmap(reinterpret_cast<void*>(end), begin + reach - end);
  return new (reinterpret_cast<void*>(aligned)) Header{arena, length_noted};
}

void* allocate_mapping(size_t size, size_t alignment) {
  if (alignment > kMostAligned || size > (size_t{1} << 46)) return nullptr;
  const size_t offset = std::max(alignment, sizeof(Header));
  const size_t length = offset + size;
  Header* header = map(length, nullptr, length);
  return header != nullptr ? reinterpret_cast<std::byte*>(header) + offset : nullptr;
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
  if (size > kLargestShared || alignment > kLine) return allocate_mapping(size, alignment);
  // Blocks of some sizes straddle two cache lines: those of a power of two do not.
  if (alignment > 16) size = std::bit_ceil(std::max(size, kLine));
  const unsigned index = index_of(size);
  Arena& arena = lock_an_arena();
  Sizes& sizes = arena.sizes[index];
  void* block = sizes.free;
  if (block != nullptr) {
    sizes.free = sizes.free->next;
  } else {
    if (static_cast<size_t>(sizes.end - sizes.fresh) < size_of(index)) {
      Header* slab = map(kSlab, &arena, size_of(index));
      if (slab != nullptr) {
        sizes.fresh = reinterpret_cast<std::byte*>(slab + 1);
        sizes.end = reinterpret_cast<std::byte*>(slab) + kSlab;
      }
    }
    if (static_cast<size_t>(sizes.end - sizes.fresh) >= size_of(index)) {
      block = sizes.fresh;
      sizes.fresh += size_of(index);
    }
  }
  arena.lock.unlock();
  return block;
}

void heap_release(void* block) noexcept {
  if (block == nullptr) return;
  Header& header = header_of(block);
  if (header.arena == nullptr) {
    munmap(&header, (header.length + kPage - 1) & ~(kPage - 1));
    return;
  }
  Sizes& sizes = header.arena->sizes[index_of(header.length)];
  header.arena->lock.lock();
  sizes.free = new (block) Free{sizes.free};
  header.arena->lock.unlock();
}

void heap_after_fork() noexcept {
  for (Arena& arena : g_arenas) {
    if (!arena.lock.is_locked()) continue;
    arena.sizes.fill({});
    arena.lock.reset_after_fork();
  }
}

}  // namespace sidestep::engine

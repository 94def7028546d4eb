#pragma once
/// The library's own heap, apart from malloc's.
///
/// A signal handler may interrupt malloc and then read or write a stream, which POSIX allows
/// (signal-safety(7)). Data that has arrived by then may need memory, and the thread would wait for
/// malloc's lock, which it holds itself. The locks of this heap are the library's own, and the
/// program's handlers wait until none is held (held_locks.hpp). Nor does it matter here what a
/// program uses in place of malloc.
///
/// Blocks of up to kLargestShared bytes come in a few sizes, are cut from slabs, and are reused;
/// each larger block is a mapping of its own. Each of a few arenas has a slab, usually of 64 KiB,
/// for each size in use, and gets another one when that is full. Slabs are never given back. Any
/// thread.
#include <cstddef>

namespace sidestep::engine {

inline constexpr size_t kLargestShared = 128 << 10;

/// Returns null when memory is exhausted. `alignment`: a power of two, up to 64 KiB.
void* heap_allocate(size_t size, size_t alignment) noexcept;
/// Does nothing for null.
void heap_release(void* block) noexcept;
/// Maps a reserve, once. Blocks come from it when the kernel gives no more memory. It is large
/// enough for the existing streams to go on, so that few failures occur that could not be reported
/// to anybody.
void heap_keep_reserve() noexcept;
/// True once the reserve has been used: whatever can do without the library's memory should do so.
bool heap_is_short() noexcept;
/// Only for the child of a fork: abandons what other threads were about to do with the heap.
void heap_after_fork() noexcept;

}  // namespace sidestep::engine

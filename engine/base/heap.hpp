#pragma once
/// The library's own heap, apart from malloc's.
///
/// A signal handler may interrupt malloc and then read or write a stream, which POSIX allows
/// (signal-safety(7)); what has arrived may need memory by then, and malloc's lock would be waited
/// for by the very thread that holds it. The locks of this heap are the library's own, and the
/// program's handlers wait until none is held (held_locks.hpp). Nor does it matter here what a
/// program has in place of malloc.
///
/// Blocks of up to kLargestShared bytes are of one of a few sizes, cut from slabs, and are used
/// again; larger ones are mappings of their own. Slabs are never given back: one for each size that
/// is in use, as a rule of 64 KiB. Any thread.
#include <cstddef>

namespace sidestep::engine {

inline constexpr size_t kLargestShared = 128 << 10;

/// `alignment`: a power of two, up to 64 KiB. Null when memory is exhausted.
void* heap_allocate(size_t size, size_t alignment) noexcept;
/// Null: nothing.
void heap_release(void* block) noexcept;
/// Maps a reserve, once. When the kernel gives no more, it is what blocks come from: enough for the
/// streams that there are to go on, so that little fails that nobody could be told of.
void heap_keep_reserve() noexcept;
/// The reserve has been touched: what can do without memory of the library should.
bool heap_is_short() noexcept;
/// Only in the child of a fork: what other threads were about to do with the heap is left there.
void heap_after_fork() noexcept;

}  // namespace sidestep::engine

#pragma once
/// Walking the buffers of a readv(2) or sendmsg(2).
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sidestep::engine {

inline size_t total_length(const iovec* vector, int count) noexcept {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += vector[i].iov_len;
  return length;
}

/// False for an address that no process can have: in the first page (vm.mmap_min_addr) or in the
/// kernel's half. Other bad addresses show only when they are used.
inline bool may_be_mapped(const void* address) noexcept {
  constexpr uintptr_t kFirst = 4096;
  constexpr uintptr_t kEnd = uintptr_t{1} << 56;
  return reinterpret_cast<uintptr_t>(address) - kFirst < kEnd - kFirst;
}

/// Calls piece(std::byte*, size_t) for the parts of the vector from `offset` on, `length` bytes in
/// all or as many as there are.
template <typename Piece>
void for_pieces(const iovec* vector, int count, size_t offset, size_t length,
                Piece piece) noexcept {
  for (int i = 0; i < count && length != 0; ++i) {
    if (offset >= vector[i].iov_len) {
      offset -= vector[i].iov_len;
      continue;
    }
    const size_t part = std::min(vector[i].iov_len - offset, length);
    piece(static_cast<std::byte*>(vector[i].iov_base) + offset, part);
    length -= part;
    offset = 0;
  }
}

/// How many of these bytes come before the first part whose address cannot be right.
inline size_t reachable_length(const iovec* vector, int count, size_t offset,
                               size_t length) noexcept {
  size_t reachable = 0;
  bool bad = false;
  for_pieces(vector, count, offset, length, [&](const std::byte* at, size_t size) {
    bad = bad || !may_be_mapped(at);
    if (!bad) reachable += size;
  });
  return reachable;
}

/// Copies `length` bytes out of the vector from `offset` on.
inline void copy_from(std::byte* to, const iovec* vector, int count, size_t offset,
                      size_t length) noexcept {
  for_pieces(vector, count, offset, length, [&](const std::byte* from, size_t size) {
    std::memcpy(to, from, size);
    to += size;
  });
}

/// Copies `length` bytes into the vector from `offset` on; returns how many had room.
inline size_t copy_to(const iovec* vector, int count, size_t offset, const std::byte* from,
                      size_t length) noexcept {
  size_t done = 0;
  for_pieces(vector, count, offset, length, [&](std::byte* to, size_t size) {
    std::memcpy(to, from + done, size);
    done += size;
  });
  return done;
}

}  // namespace sidestep::engine

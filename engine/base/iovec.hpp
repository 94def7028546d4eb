#pragma once
/// Walking the buffers of a readv(2) or sendmsg(2): see user_copy.hpp.
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/base/user_copy.hpp"

namespace sidestep::engine {

inline size_t total_length(const iovec* vector, int count) noexcept {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += vector[i].iov_len;
  return length;
}

/// Calls piece(std::byte*, size_t) for the parts of the vector from `offset` on, for `length` bytes
/// in total or as many as there are.
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

/// Like touch(), for `length` bytes of the vector from `offset` on.
inline size_t touch_vector(const iovec* vector, int count, size_t offset, size_t length) noexcept {
  size_t reached = 0;
  bool cut = false;
  for_pieces(vector, count, offset, length, [&](const std::byte* at, size_t size) {
    if (cut) return;
    const size_t there = touch(at, size);
    reached += there;
    cut = there != size;
  });
  return reached;
}

/// Like touch_to_write(), for the same bytes.
inline void touch_vector_to_write(const iovec* vector, int count, size_t offset,
                                  size_t length) noexcept {
  for_pieces(vector, count, offset, length,
             [](std::byte* at, size_t size) { touch_to_write(at, size); });
}

/// Copies `length` bytes out of the vector from `offset` on; returns how many could be read.
inline size_t copy_from(std::byte* to, const iovec* vector, int count, size_t offset,
                        size_t length) noexcept {
  size_t done = 0;
  bool cut = false;
  for_pieces(vector, count, offset, length, [&](const std::byte* from, size_t size) {
    if (cut) return;
    const size_t copied = copy_in(to + done, from, size);
    done += copied;
    cut = copied != size;
  });
  return done;
}

/// Copies `length` bytes into the vector from `offset` on; returns how many fit and could be
/// written.
inline size_t copy_to(const iovec* vector, int count, size_t offset, const std::byte* from,
                      size_t length) noexcept {
  size_t done = 0;
  bool cut = false;
  for_pieces(vector, count, offset, length, [&](std::byte* to, size_t size) {
    if (cut) return;
    const size_t copied = copy_out(to, from + done, size);
    done += copied;
    cut = copied != size;
  });
  return done;
}

}  // namespace sidestep::engine

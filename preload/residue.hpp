#pragma once
/// Bytes that had come over the engine, were unread when the process forked, and could not be
/// returned to their sender (engine/stream/unread_return.cpp).
///
/// Parent and child share one socket, so the one that reads first must take the bytes from the
/// other. They lie in anonymous shared memory that both inherit, behind a lock that works between
/// processes.
#include <pthread.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace sidestep::preload {

class Residue {
 public:
  /// More than any socket buffer takes. Memory is used only for what is appended.
  static constexpr size_t kMost = size_t{1} << 31;
  /// Makes room for `size` bytes. Null if there is no memory, or if `size` is more than kMost.
  static Residue* create(size_t size) noexcept;

  /// Returns false, and takes nothing, if there is no room.
  bool append(const std::byte* data, size_t size) noexcept;
  /// Copies what is left into the vector from `offset` on, and takes it unless `peek` is set.
  /// Returns 0 if nothing is left or nothing could be copied. If `copies` is false, it copies
  /// nothing and only takes.
  size_t read(const iovec* vector, int count, size_t offset, bool peek,
              bool copies = true) noexcept;
  size_t left() noexcept;
  /// Everything that was appended. To be called before any of it is read.
  std::span<const std::byte> all() noexcept { return {bytes(), filled_}; }
  /// Unmaps the residue in this process.
  static void release(Residue* residue) noexcept;

 private:
  void lock() noexcept;
  void unlock() noexcept;
  std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }

  pthread_mutex_t mutex_;
  size_t mapped_;
  size_t filled_;
  size_t taken_;
};

}  // namespace sidestep::preload

#pragma once
/// What has arrived for one stream and is still unread: pieces of receive buffers and, in their
/// place between them, the marks at which the stream changes its carrier or ends.
///
/// One producer (the thread that dispatches receives, under the lock of its lane) and one
/// consumer (under the stream's receive lock). A linked list of chunks: the producer stores an
/// entry and then `filled` with release; the consumer loads `filled` with acquire. One spent chunk
/// is kept for reuse, so that a stream in steady state allocates nothing.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/device/device.hpp"

namespace sidestep::engine {

enum class SegmentKind : uint32_t {
  data,
  switch_up,    ///< value: kernel bytes that come before what follows
  switch_down,  ///< what follows is on the anchor; value: 1 if the peer may hold it, or 0
  fin,          ///< the sender is done
  error,        ///< value: errno
};

struct Segment {
  const std::byte* data = nullptr;  ///< data: unread bytes; null with a `copy`
  RecvBuffer* buffer = nullptr;     ///< one reference; null when the bytes were copied out
  std::byte* copy = nullptr;        ///< owned heap block that `data` points into, after a spill
  uint64_t value = 0;
  uint32_t length = 0;
  SegmentKind kind = SegmentKind::data;
};

class SegmentQueue {
 public:
  SegmentQueue() noexcept = default;
  ~SegmentQueue();
  SegmentQueue(const SegmentQueue&) = delete;

  /// Producer. False when memory is exhausted.
  [[gnu::always_inline]] bool push(const Segment& segment) noexcept {
    Chunk* const chunk = tail_;
    const uint32_t filled =
        chunk != nullptr ? chunk->filled.load(std::memory_order_relaxed) : kEntries;
    if (filled == kEntries) [[unlikely]]
      return push_chunk(segment);
    chunk->entries[filled] = segment;
    chunk->filled.store(filled + 1, std::memory_order_release);
    return true;
  }

  /// Consumer: the oldest entry, or null. The consumer may shorten it in place.
  [[gnu::always_inline]] Segment* front() noexcept {
    if (head_ == nullptr || read_ == kEntries) [[unlikely]]
      return front_of_next();
    return read_ < head_->filled.load(std::memory_order_acquire) ? &head_->entries[read_] : nullptr;
  }
  /// Consumer: frees the oldest entry; does not touch its buffer.
  void pop() noexcept {
    Segment& segment = head_->entries[read_];
    if (segment.copy != nullptr) [[unlikely]]
      free_copy(segment);
    ++read_;
  }
  /// Consumer: drops everything with its buffers.
  void clear() noexcept;

  /// Consumer: copies every entry that still refers to a receive buffer into private
  /// memory and releases the buffers. Returns the bytes copied.
  uint64_t spill() noexcept;

  /// Consumer: calls `visit(Segment&)` from the oldest on until it returns false.
  template <typename Visit>
  void for_each(Visit visit) noexcept {
    uint32_t index = read_;
    // A consumer that has never read has no head yet.
    Chunk* chunk = head_ != nullptr ? head_ : first_.load(std::memory_order_acquire);
    for (; chunk != nullptr; chunk = chunk->next.load(std::memory_order_acquire)) {
      const uint32_t filled = chunk->filled.load(std::memory_order_acquire);
      for (; index < filled; ++index)
        if (!visit(chunk->entries[index])) return;
      // The producer may since have filled this chunk up and begun another; the visit does not go
      // on to that one yet.
      if (filled < kEntries) return;
      index = 0;
    }
  }

 private:
  static constexpr uint32_t kEntries = 62;
  struct Chunk {
    std::atomic<uint32_t> filled{0};
    std::atomic<Chunk*> next{nullptr};
    Segment entries[kEntries];
  };

  /// The seldom-needed parts of the functions above.
  bool push_chunk(const Segment& segment) noexcept;
  Segment* front_of_next() noexcept;
  static void free_copy(Segment& segment) noexcept;

  Chunk* tail_ = nullptr;              // producer
  alignas(64) Chunk* head_ = nullptr;  // consumer; set once by the first push, see first_
  uint32_t read_ = 0;
  std::atomic<Chunk*> first_{nullptr};
  std::atomic<Chunk*> spare_{nullptr};
};

}  // namespace sidestep::engine

#include "engine/stream/segment_queue.hpp"

#include <cstring>
#include <new>

namespace sidestep::engine {

SegmentQueue::~SegmentQueue() {
  clear();
  if (head_ == nullptr) head_ = first_.load(std::memory_order_relaxed);
  delete head_;
  delete spare_.load(std::memory_order_relaxed);
}

bool SegmentQueue::push_chunk(const Segment& segment) noexcept {
  // One allocation per 62 entries, and none as long as the consumer keeps up, because it hands
  // chunks back.
  Chunk* const chunk = tail_;
  Chunk* fresh = spare_.exchange(nullptr, std::memory_order_acquire);
  if (fresh == nullptr) fresh = new (std::nothrow) Chunk;
  if (fresh == nullptr) return false;
  tail_ = fresh;
  fresh->entries[0] = segment;
  fresh->filled.store(1, std::memory_order_relaxed);
  // release publishes the chunk with its first entry.
  (chunk != nullptr ? chunk->next : first_).store(fresh, std::memory_order_release);
  return true;
}

Segment* SegmentQueue::front_of_next() noexcept {
  if (head_ == nullptr) {
    head_ = first_.load(std::memory_order_acquire);
    if (head_ == nullptr) return nullptr;
  }
  if (read_ == kEntries) {
    Chunk* next = head_->next.load(std::memory_order_acquire);
    if (next == nullptr) return nullptr;
    Chunk* spent = head_;
    head_ = next;
    read_ = 0;
    spent->filled.store(0, std::memory_order_relaxed);
    spent->next.store(nullptr, std::memory_order_relaxed);
    // release pairs with the producer's exchange, which finds the chunk empty again.
    delete spare_.exchange(spent, std::memory_order_acq_rel);
  }
  return read_ < head_->filled.load(std::memory_order_acquire) ? &head_->entries[read_] : nullptr;
}

void SegmentQueue::free_copy(Segment& segment) noexcept {
  operator delete(segment.copy);
  segment.copy = nullptr;
}

void SegmentQueue::clear() noexcept {
  while (Segment* segment = front()) {
    if (segment->buffer != nullptr) segment->buffer->drop(1);
    pop();
  }
}

uint64_t SegmentQueue::spill() noexcept {
  uint64_t copied = 0;
  for_each([&](Segment& segment) {
    if (segment.kind != SegmentKind::data || segment.buffer == nullptr) return true;
    auto* block = static_cast<std::byte*>(operator new(segment.length, std::nothrow));
    if (block == nullptr) return false;  // the bytes stay where they are, and the peer waits
    std::memcpy(block, segment.data, segment.length);
    segment.copy = block;
    segment.data = block;
    segment.buffer->drop(1);
    segment.buffer = nullptr;
    copied += segment.length;
    return true;
  });
  return copied;
}

}  // namespace sidestep::engine

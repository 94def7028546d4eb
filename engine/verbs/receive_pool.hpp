#pragma once
/// The receive side that all connections share (Ibdxnet, section 8.3): a pool of buffers, and a
/// shared receive queue of work requests that scatter into several of them.
///
/// A work request stands in the queue with `pieces` buffers, so that it takes the longest that a
/// peer may send; what arrives fills the first few, those are replaced out of the pool, and the
/// rest stay where they are. A buffer comes back when the program has read it.
///
/// The pool starts small and grows when it has been too small: pinning memory takes time, for which
/// the first streams would wait, and the less of it goes round, the more of it is in a cache.
///
/// Threads: take() and refill() under the node's receive lock; give_back() by any thread; grow() by
/// one thread at a time, which then waits for nobody.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/device/device.hpp"
#include "engine/verbs/memory.hpp"

namespace sidestep::engine::verbs {

struct PoolGeometry {
  uint32_t buffer_size;  ///< bytes, a power of two
  uint32_t pieces;       ///< buffers of one work request
  uint32_t buffers;      ///< in all
  uint32_t requests;     ///< that stand in the queue

  uint32_t request_size() const noexcept { return buffer_size * pieces; }
  /// The best use of `bytes` of memory on a device with such limits.
  static PoolGeometry plan(uint64_t bytes, uint32_t max_pieces, uint32_t max_requests) noexcept;
};

class ReceivePool {
 public:
  /// Null when memory or queue can't be had; errno says why. Memory is taken for the first part.
  static std::unique_ptr<ReceivePool> create(const Library& library, ibv_pd* domain,
                                             const PoolGeometry& geometry) noexcept;
  ~ReceivePool();
  ReceivePool(const ReceivePool&) = delete;

  const PoolGeometry& geometry() const noexcept { return geometry_; }
  ibv_srq* queue() const noexcept { return queue_; }
  /// Work requests that stand in the queue now.
  uint32_t posted() const noexcept { return posted_; }
  /// Work requests that there is memory for so far. Any thread.
  uint32_t requests() const noexcept { return requests_in_use_.load(std::memory_order_relaxed); }
  /// Any thread.
  bool can_grow() const noexcept { return can_grow_.load(std::memory_order_relaxed); }
  /// Registers a little more of the memory; refill() takes it into use. False: there is no more.
  bool grow() noexcept;
  /// grow() has left something for refill(). Any thread.
  bool has_grown() const noexcept { return grown_.load(std::memory_order_relaxed) != nullptr; }
  /// Buffers are missing: some work requests could not be put back. Any thread.
  bool is_short() const noexcept { return short_.load(std::memory_order_relaxed); }

  static constexpr uint32_t kMaxPieces = 8;
  struct Piece {
    std::byte* data;
    RecvBuffer* buffer;
    uint32_t length;
  };
  /// The buffers that `length` bytes of work request `request` have filled: pieces[0 ..] are
  /// written, their number is returned (0 for an empty message). Throws nothing; `length` is at
  /// most request_size().
  uint32_t take(uint64_t request, uint32_t length, Piece* pieces) noexcept;
  /// Whether refill() has something to do: that much was taken that it is worth a chain.
  bool wants_refill() const noexcept {
    return waiting_.size() >= batch_ || is_short() || has_grown();
  }
  /// Completes what was taken with fresh buffers and posts it again, in chains. True when a
  /// shortage has ended, or the pool has grown.
  bool refill() noexcept;
  /// The last reference to a buffer has gone. True when a shortage waits for it: somebody has to
  /// call refill().
  bool give_back(RecvBuffer& buffer) noexcept;
  /// The device says that the queue runs low (IBV_EVENT_SRQ_LIMIT_REACHED, which comes once). Any
  /// thread.
  void on_limit() noexcept { limit_armed_.store(false, std::memory_order_relaxed); }

 private:
  ReceivePool(const Library& library, ibv_pd* domain, const PoolGeometry& geometry,
              uint32_t chunk_size, ibv_srq* queue);
  std::optional<Memory> next_chunk() noexcept;
  void take_into_use(Memory chunk) noexcept;
  const Memory& chunk_of(uint32_t buffer) const noexcept { return chunks_[buffer >> chunk_shift_]; }
  std::byte* address_of(uint32_t buffer) const noexcept {
    return chunk_of(buffer).bytes().data() +
           size_t{buffer & ((1U << chunk_shift_) - 1)} * geometry_.buffer_size;
  }
  bool replace_taken(uint32_t request) noexcept;
  void arm_limit() noexcept;
  uint32_t next_free() noexcept;

  static constexpr uint32_t kNone = ~uint32_t{0};

  struct alignas(64) Request {
    uint32_t buffers[kMaxPieces];
    uint32_t taken;  // the first so many are with their readers
  };

  const Library& ibv_;
  ibv_pd* const domain_;
  const PoolGeometry geometry_;
  // Several regions and not one: Soft-RoCE walks through the pages of a region to find an address,
  // and a huge page is a good size for any adapter.
  std::vector<Memory> chunks_;           // reserved for all
  const uint32_t per_chunk_;             // buffers; a power of two, unless one chunk is all
  const unsigned chunk_shift_;           // of a buffer's number, to that of its chunk
  uint32_t registered_ = 0;              // buffers in chunks_ and grown_; grow()
  std::atomic<Memory*> grown_{nullptr};  // a chunk on its way from grow() to refill()
  std::atomic<bool> can_grow_{true};
  std::atomic<uint32_t> requests_in_use_{0};
  ibv_srq* const queue_;
  const std::unique_ptr<RecvBuffer[]> buffers_;
  const std::unique_ptr<std::atomic<uint32_t>[]> next_;  // links of given_back_
  std::vector<Request> requests_;
  std::vector<uint32_t> waiting_;  // work requests that are not in the queue
  std::vector<uint32_t> free_;
  uint32_t posted_ = 0;
  const uint32_t batch_;  // requests that are worth a chain
  std::atomic<bool> short_{false};
  std::atomic<bool> limit_armed_{false};
  alignas(64) std::atomic<uint32_t> given_back_{kNone};  // a stack; emptied as a whole
};

}  // namespace sidestep::engine::verbs

#pragma once
/// The receive side that all connections share (Ibdxnet, section 8.3): a pool of buffers, and a
/// shared receive queue of work requests that scatter into several of them.
///
/// Each work request in the queue has `pieces` buffers, so that it can take the longest message
/// that a peer may send. A message fills the first few of them; those are replaced from the pool,
/// and the rest stay where they are. A buffer comes back when the program has read it.
///
/// The pool starts small and grows when it has been too small. Pinning memory takes time, and the
/// first streams would have to wait for it. Also, the less memory circulates, the more of it stays
/// in a cache.
///
/// Threads: take() and refill() run under the node's receive lock; any thread may call give_back();
/// one thread at a time may call grow(), and it then waits for nobody.
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
  uint32_t requests;     ///< work requests in the queue

  uint32_t request_size() const noexcept { return buffer_size * pieces; }
  /// Returns the best use of `bytes` of memory on a device with these limits.
  static PoolGeometry plan(uint64_t bytes, uint32_t max_pieces, uint32_t max_requests) noexcept;
};

class ReceivePool {
 public:
  /// Creates a pool with memory for its first part. Null if the memory or the queue can't be
  /// created; errno says why.
  static std::unique_ptr<ReceivePool> create(const Library& library, ibv_pd* domain,
                                             const PoolGeometry& geometry) noexcept;
  ~ReceivePool();
  ReceivePool(const ReceivePool&) = delete;

  const PoolGeometry& geometry() const noexcept { return geometry_; }
  ibv_srq* queue() const noexcept { return queue_; }
  /// How many work requests stand in the queue now.
  uint32_t posted() const noexcept { return posted_; }
  /// How many work requests there is memory for so far. Any thread.
  uint32_t requests() const noexcept { return requests_in_use_.load(std::memory_order_relaxed); }
  /// Any thread.
  bool can_grow() const noexcept { return can_grow_.load(std::memory_order_relaxed); }
  /// Registers a little more of the memory; refill() takes it into use. False if there is no more,
  /// or it cannot be registered.
  bool grow() noexcept;
  /// True if grow() has left something for refill(). Any thread.
  bool has_grown() const noexcept { return grown_.load(std::memory_order_relaxed) != nullptr; }
  /// True if buffers are missing: some work requests could not be put back. Any thread.
  bool is_short() const noexcept { return short_.load(std::memory_order_relaxed); }

  static constexpr uint32_t kMaxPieces = 8;
  struct Piece {
    std::byte* data;
    RecvBuffer* buffer;
    uint32_t length;
  };
  /// Takes the buffers that `length` bytes of work request `request` have filled. Writes them to
  /// pieces[0 ..] and returns their number (0 for an empty message). Throws nothing; `length` is at
  /// most request_size().
  uint32_t take(uint64_t request, uint32_t length, Piece* pieces) noexcept;
  /// True if refill() has something to do: enough was taken to be worth a chain, buffers are
  /// missing, or the pool has grown.
  bool wants_refill() const noexcept {
    return waiting_.size() >= batch_ || is_short() || has_grown();
  }
  /// Gives fresh buffers to the work requests that were taken and posts them again, in chains. True
  /// if a shortage has ended or the pool has grown.
  bool refill() noexcept;
  /// Called when the last reference to a buffer has gone. True if a shortage waits for the buffer:
  /// then somebody has to call refill().
  bool give_back(RecvBuffer& buffer) noexcept;
  /// Called when the device says that the queue runs low (IBV_EVENT_SRQ_LIMIT_REACHED, which comes
  /// once). Any thread.
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
    uint32_t taken;  // how many, from the first on, are with their readers
  };

  const Library& ibv_;
  ibv_pd* const domain_;
  const PoolGeometry geometry_;
  // Several regions instead of one, because Soft-RoCE walks through the pages of a region to find
  // an address, and a huge page is a good size for any adapter.
  std::vector<Memory> chunks_;           // space is reserved for all
  const uint32_t per_chunk_;             // buffers; a power of two, unless there is one chunk only
  const unsigned chunk_shift_;           // shifts a buffer's number to that of its chunk
  uint32_t registered_ = 0;              // buffers in chunks_ and grown_; set by grow()
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
  const uint32_t batch_;  // how many requests are worth a chain
  std::atomic<bool> short_{false};
  std::atomic<bool> limit_armed_{false};
  alignas(64) std::atomic<uint32_t> given_back_{kNone};  // a stack; emptied as a whole
};

}  // namespace sidestep::engine::verbs

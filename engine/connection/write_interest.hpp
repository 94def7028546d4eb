#pragma once
/// The write interest ring (Ibdxnet, section 8.2): connections that have something to post.
///
/// A connection is in the ring at most once: only the thread whose fetch_add on
/// Connection::interest found 0 pushes it, and the counter goes back to 0 only after it was popped.
/// So the ring never needs more than one entry per connection, and draining it in order serves the
/// connections round robin. There may be many producers and many consumers; a cell holds its
/// entry's ticket + 1, which tells a filled cell from one of an earlier lap.
#include <atomic>
#include <cstdint>
#include <optional>

#include "engine/base/zeroed_array.hpp"

namespace sidestep::engine {

class WriteInterest {
 public:
  static constexpr unsigned kBits = 17;  // of Connection::number()
  static constexpr uint32_t kCells = 1U << kBits;

  WriteInterest() : cells_(make_zeroed<std::atomic<uint64_t>>(kCells)) {}

  void push(uint32_t connection) noexcept {
    const uint32_t ticket = tail_.fetch_add(1, std::memory_order_relaxed);
    std::atomic<uint64_t>& cell = cells_[ticket % kCells];
    // The cell is free: at most one entry for each of the 2^17 connections is in the ring at any
    // time. seq_cst: the pusher next checks whether the poster is still there (Connection::kick).
    cell.store(uint64_t{ticket + 1} << kBits | connection, std::memory_order_seq_cst);
  }

  bool empty() const noexcept {
    const uint32_t head = head_.load(std::memory_order_relaxed);
    return cells_[head % kCells].load(std::memory_order_relaxed) >> kBits != uint64_t{head + 1};
  }

  std::optional<uint32_t> pop() noexcept {
    uint32_t head = head_.load(std::memory_order_relaxed);
    for (;;) {
      // acquire pairs with push(): what the pushing thread committed before is visible.
      const uint64_t cell = cells_[head % kCells].load(std::memory_order_acquire);
      if (cell >> kBits != uint64_t{head + 1}) {
        const uint32_t now = head_.load(std::memory_order_relaxed);
        if (now == head) return std::nullopt;
        head = now;
        continue;
      }
      if (head_.compare_exchange_weak(head, head + 1, std::memory_order_relaxed))
        return static_cast<uint32_t>(cell & (kCells - 1));
    }
  }

 private:
  const ZeroedArray<std::atomic<uint64_t>> cells_;
  alignas(64) std::atomic<uint32_t> tail_{0};
  alignas(64) std::atomic<uint32_t> head_{0};
};

}  // namespace sidestep::engine

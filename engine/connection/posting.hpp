#pragma once
/// What the connections of a node share when they post: the write interest ring, and how many of
/// them wait for room.
#include <atomic>
#include <cstdint>

#include "engine/connection/connection_table.hpp"
#include "engine/connection/write_interest.hpp"

namespace sidestep::engine {

class Posting {
 public:
  explicit Posting(ConnectionTable& connections) noexcept : connections_(connections) {}
  Posting(const Posting&) = delete;

  /// The NID of the node that posts. Set before there is a connection.
  void set_nid(uint16_t nid) noexcept { nid_ = nid; }
  uint16_t nid() const noexcept { return nid_; }

  /// Puts a connection into the ring; see WriteInterest for who may. Any lock may be held.
  void request(uint32_t connection) noexcept { interest_.push(connection); }
  /// Posts for the connections in the ring. Any thread; never blocks.
  void post_requested() noexcept {
    if (!interest_.empty()) post_all();
  }

  /// True if some connection has no room. When there is room again, its peer tells only those who
  /// listen.
  // relaxed: the next poll sees room that comes while somebody looks.
  bool is_starved() const noexcept { return starved_.load(std::memory_order_relaxed) != 0; }
  void count_starved(int change) noexcept { starved_.fetch_add(change, std::memory_order_relaxed); }

 private:
  void post_all() noexcept;

  ConnectionTable& connections_;
  WriteInterest interest_;
  std::atomic<int> starved_{0};
  uint16_t nid_ = 0;
};

}  // namespace sidestep::engine

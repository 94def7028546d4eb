#pragma once
/// Streams of this node by id (for the dispatcher) and by TCP connection (for queries).
///
/// find() by id runs on the hot path without lock_, under the lock of one lane. A stream leaves the
/// table under the locks of all lanes, so it cannot be freed while a fragment for it is being
/// handled. Everything else takes lock_.
#include <unordered_map>
#include <vector>

#include "engine/base/zeroed_array.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {

class StreamTable {
 public:
  static constexpr uint32_t kSlots = 1U << 17;

  StreamTable();

  /// Gives the stream an id; false if the table is full.
  bool insert(Stream& stream, bool by_tuple);
  /// The caller holds the node's receive lock.
  void erase(Stream& stream) noexcept;
  void forget_tuple(const Stream& stream) noexcept;

  Stream* find(uint32_t id, uint32_t generation) const noexcept {
    if (id >= kSlots) return nullptr;
    // acquire pairs with the release in insert(): the stream is complete.
    Stream* stream = slots_[id].load(std::memory_order_acquire);
    return stream != nullptr && stream->generation() == generation ? stream : nullptr;
  }
  /// Returns the stream whose own view of its connection is `tuple`; null if there is none.
  /// The caller holds the node's receive lock, or knows that the stream stays.
  Stream* find(const Tuple& tuple) noexcept;

  /// An upper bound on the number of streams.
  size_t slots_used() noexcept;
  std::vector<Stream*> all();

 private:
  Mutex lock_;
  ZeroedArray<std::atomic<Stream*>> slots_;
  std::vector<uint32_t> free_;  // has room for every slot that is used
  uint32_t used_ = 1;           // id 0 is never given out
  uint32_t generations_ = 0;
  std::unordered_map<Tuple, Stream*, TupleHash> by_tuple_;
};

}  // namespace sidestep::engine

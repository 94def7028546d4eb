#pragma once
/// The outgoing ring buffer of a connection (Ibdxnet, sections 2.2 and 8.2).
///
/// Many threads reserve, copy and commit at once; one at a time drains. Protocol:
///
///   front <= posted <= back, byte positions that only grow; the ring index is position % size.
///     front .. posted   handed to the device and not yet confirmed by it
///     posted .. back    reserved; ready to send as far as fragments are committed without a gap
///
///   back_    moved by reserve() with a compare-exchange.
///   slots_   one word per grain. commit() stores (lap, size) into the slot of the fragment's first
///            grain with release; the drainer loads it with acquire and believes it only if the lap
///            is that of its own position, so neither payload bytes nor an older lap can be
///            mistaken for a commit. The lap has 32 bits: it wraps around after 2^32 turns of the
///            ring.
///   posted_  written by the drainer (who holds the connection's post lock).
///   front_   moved by set_front() to what the device has confirmed; reserve() loads it with
///            acquire: the device has let go of everything before it.
///
/// The memory is mapped twice in a row, so a fragment is always contiguous for the copying thread.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/zeroed_array.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine {

class Orb {
 public:
  static constexpr uint64_t kNoSpace = ~uint64_t{0};
  /// Room that only control fragments may use, so that data cannot lock out credit and FIN.
  static constexpr uint64_t kControlReserve = 8 * 1024;

  /// `memory`: the ring; its size is a power of two, and it is mapped twice in a row.
  explicit Orb(std::span<std::byte> memory);

  uint64_t size() const noexcept { return size_; }

  /// Reserves a fragment of `payload` bytes and returns its position, or kNoSpace. Any thread.
  uint64_t reserve(uint32_t payload, bool control) noexcept;
  /// Where the fragment at `position` goes: header, then payload.
  std::byte* at(uint64_t position) const noexcept { return memory_ + (position & mask_); }
  /// Publishes the fragment at `position` to the drainer.
  void commit(uint64_t position, uint32_t payload) noexcept;

  /// Data bytes for which reserve() would find room now. A hint: another thread may take it.
  uint64_t free_for_data() const noexcept;

  /// Ends the ring: no later reservation succeeds. Returns the position behind the last one. Call
  /// it once.
  uint64_t close() noexcept { return back_.fetch_add(2 * size_, std::memory_order_acq_rel); }
  /// Bytes of the fragment at `position` with its padding, 0 until it is committed. Any thread,
  /// for positions that front() has not passed.
  uint32_t committed_size(uint64_t position) const noexcept;

  // --- the drainer; the caller holds the connection's post lock ---
  struct Ready {
    uint64_t position;
    uint32_t length;  ///< bytes, 0: nothing is ready
    uint32_t fragments;
    bool last;  ///< nothing was ready behind it
  };
  bool has_ready(uint64_t from) const noexcept;
  /// The next piece that is ready: at most `limit` bytes, whole fragments only.
  Ready peek(uint64_t from, uint32_t limit) const noexcept;
  void set_posted(uint64_t position) noexcept {
    posted_.store(position, std::memory_order_release);
  }
  uint64_t posted() const noexcept { return posted_.load(std::memory_order_acquire); }

  void set_front(uint64_t position) noexcept;
  uint64_t front() const noexcept { return front_.load(std::memory_order_acquire); }
  uint64_t back() const noexcept { return back_.load(std::memory_order_acquire); }

 private:
  std::byte* const memory_;
  const uint64_t size_;
  const uint64_t mask_;
  const unsigned shift_;
  const ZeroedArray<std::atomic<uint64_t>> slots_;
  alignas(64) std::atomic<uint64_t> back_{0};
  alignas(64) std::atomic<uint64_t> front_{0};
  alignas(64) std::atomic<uint64_t> posted_{0};
};

// Inline: each small send passes through all of them.

inline uint64_t Orb::reserve(uint32_t payload, bool control) noexcept {
  const uint64_t need = fragment_size(payload);
  const uint64_t usable = control ? size_ : size_ - kControlReserve;
  // relaxed: the compare-exchange below is what decides.
  uint64_t position = back_.load(std::memory_order_relaxed);
  do {
    // acquire pairs with the release in set_front(): what lies before front_ is ours to overwrite.
    if (position + need - front_.load(std::memory_order_acquire) > usable) return kNoSpace;
  } while (!back_.compare_exchange_weak(position, position + need, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  // The peer read these lines last and holds them shared. Asking for lines some messages ahead
  // keeps the stores of later fragments from stalling at the next locked instruction: fetching a
  // line takes as long as several small sends.
  constexpr uint64_t kAhead = 768;
  const uint64_t ahead = payload < kAhead ? kAhead : 0;
  std::byte* next = memory_ + ((position + need + ahead) & mask_);
  __builtin_prefetch(next, 1);
  __builtin_prefetch(next + 64, 1);
  return position;
}

inline void Orb::commit(uint64_t position, uint32_t payload) noexcept {
  const uint64_t lap = (position >> shift_) + 1;
  // release pairs with the acquire in peek(): header and payload are complete.
  slots_[(position & mask_) / kOrbGrain].store(lap << 32 | fragment_size(payload),
                                               std::memory_order_release);
}

inline uint32_t Orb::committed_size(uint64_t position) const noexcept {
  const uint64_t slot = slots_[(position & mask_) / kOrbGrain].load(std::memory_order_acquire);
  const uint64_t lap = (position >> shift_) + 1;
  return slot >> 32 == (lap & 0xffffffffU) ? static_cast<uint32_t>(slot) : 0;
}

inline bool Orb::has_ready(uint64_t from) const noexcept {
  return committed_size(from) != 0;
}

inline Orb::Ready Orb::peek(uint64_t from, uint32_t limit) const noexcept {
  Ready ready{from, 0, 0, false};
  for (uint64_t position = from;; ++ready.fragments) {
    const uint32_t length = committed_size(position);
    ready.last = length == 0;
    if (ready.last || ready.length + length > limit) break;
    ready.length += length;
    position += length;
  }
  return ready;
}

}  // namespace sidestep::engine

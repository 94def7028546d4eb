#include "engine/orb.hpp"

#include <bit>

namespace sidestep::engine {

Orb::Orb(std::span<std::byte> memory)
    : memory_(memory.data()),
      size_(memory.size()),
      mask_(memory.size() - 1),
      shift_(static_cast<unsigned>(std::countr_zero(memory.size()))),
      slots_(make_zeroed<std::atomic<uint64_t>>(memory.size() / kOrbGrain)) {}

uint64_t Orb::reserve(uint32_t payload, bool control) noexcept {
  const uint64_t need = fragment_size(payload);
  const uint64_t usable = control ? size_ : size_ - kControlReserve;
  // relaxed: the compare-exchange below is what decides.
  uint64_t position = back_.load(std::memory_order_relaxed);
  do {
    // acquire pairs with the release in set_front(): what lies before it is ours to overwrite.
    if (position + need - front_.load(std::memory_order_acquire) > usable) return kNoSpace;
  } while (!back_.compare_exchange_weak(position, position + need, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  // The peer read these lines last and holds them shared. Asking for lines some messages ahead
  // keeps the stores of the fragments to come from stalling at the next locked instruction: getting
  // a line over takes as long as several small sends.
  constexpr uint64_t kAhead = 768;
  std::byte* next = memory_ + ((position + need + kAhead) & mask_);
  __builtin_prefetch(next, 1);
  __builtin_prefetch(next + 64, 1);
  return position;
}

void Orb::commit(uint64_t position, uint32_t payload) noexcept {
  const uint64_t lap = (position >> shift_) + 1;
  // release pairs with the acquire in peek(): header and payload are complete.
  slots_[(position & mask_) / kOrbGrain].store(lap << 32 | fragment_size(payload),
                                               std::memory_order_release);
}

bool Orb::has_ready(uint64_t from) const noexcept {
  return committed_size(from) != 0;
}

uint32_t Orb::committed_size(uint64_t position) const noexcept {
  const uint64_t slot = slots_[(position & mask_) / kOrbGrain].load(std::memory_order_acquire);
  const uint64_t lap = (position >> shift_) + 1;
  return slot >> 32 == (lap & 0xffffffffU) ? static_cast<uint32_t>(slot) : 0;
}

Orb::Ready Orb::peek(uint64_t from, uint32_t limit) const noexcept {
  Ready ready{from, 0, 0};
  for (uint64_t position = from;; ++ready.fragments) {
    const uint32_t length = committed_size(position);
    if (length == 0 || ready.length + length > limit) break;
    ready.length += length;
    position += length;
  }
  return ready;
}

uint64_t Orb::free_for_data() const noexcept {
  const uint64_t used = back_.load(std::memory_order_relaxed) - front();
  const uint64_t usable = size_ - kControlReserve;
  return used + sizeof(FragmentHeader) + kOrbGrain >= usable
             ? 0
             : usable - used - sizeof(FragmentHeader) - kOrbGrain;
}

void Orb::set_front(uint64_t position) noexcept {
  // Several threads may learn of the same confirmation: only forward.
  uint64_t front = front_.load(std::memory_order_relaxed);
  while (position > front &&
         !front_.compare_exchange_weak(front, position, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
}

}  // namespace sidestep::engine

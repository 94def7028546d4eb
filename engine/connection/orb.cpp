#include "engine/connection/orb.hpp"

#include <bit>

namespace sidestep::engine {

Orb::Orb(std::span<std::byte> memory)
    : memory_(memory.data()),
      size_(memory.size()),
      mask_(memory.size() - 1),
      shift_(static_cast<unsigned>(std::countr_zero(memory.size()))),
      slots_(make_zeroed<std::atomic<uint64_t>>(memory.size() / kOrbGrain)) {}

uint64_t Orb::free_for_data() const noexcept {
  const uint64_t used = back_.load(std::memory_order_relaxed) - front();
  const uint64_t usable = size_ - kControlReserve;
  return used + sizeof(FragmentHeader) + kOrbGrain >= usable
             ? 0
             : usable - used - sizeof(FragmentHeader) - kOrbGrain;
}

void Orb::set_front(uint64_t position) noexcept {
  // Several threads may learn of the same confirmation, so this moves forward only.
  uint64_t front = front_.load(std::memory_order_relaxed);
  while (position > front &&
         !front_.compare_exchange_weak(front, position, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
}

}  // namespace sidestep::engine

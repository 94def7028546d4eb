#pragma once
/// A hash for tables whose keys others choose.
#include <cstdint>
#include <span>

namespace sidestep::engine {

/// Returns a hash of `words`. Without knowing `seed` and `factor` (an odd number), nobody can tell
/// which keys collide.
constexpr uint64_t hash_words(std::span<const uint64_t> words, uint64_t seed,
                              uint64_t factor = 0xff51afd7ed558ccdU) noexcept {
  uint64_t hash = seed;
  for (const uint64_t word : words) {
    hash = (hash ^ word) * factor;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace sidestep::engine

#pragma once
/// The bytes of a checked stream, and the random numbers behind them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pair {

inline uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t n) { return next() % n; }
  /// Returns a size between 1 and `max`; every order of magnitude is equally likely.
  size_t size(size_t max) {
    const uint64_t low = uint64_t{1} << below(21);
    return std::min<size_t>(max, low + below(low));
  }

 private:
  uint64_t state_;
};

/// The stream is cut into segments. Each is a piece of one random block; the key and the segment's
/// number decide where it starts. Lost, repeated and swapped bytes all show as a mismatch.
class Pattern {
 public:
  explicit Pattern(uint64_t key) : key_(key) {}

  /// Returns the bytes at an offset: at least one, and at most `limit` or up to the segment's end.
  std::span<const char> at(uint64_t offset, uint64_t limit) const {
    const size_t place = mix(key_ + offset / kSegment) % kPlaces;
    const size_t inside = offset % kSegment;
    return {block().data() + place + inside, std::min<size_t>(limit, kSegment - inside)};
  }

 private:
  static constexpr size_t kPlaces = 1 << 20;
  static constexpr size_t kSegment = 65521;

  static const std::vector<char>& block() {
    static const std::vector<char> bytes = [] {
      std::vector<char> b(kPlaces + kSegment);
      Random random(0x51de57e9);
      for (char& c : b) c = static_cast<char>(random.next());
      return b;
    }();
    return bytes;
  }

  uint64_t key_;
};

}  // namespace pair

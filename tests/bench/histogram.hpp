#pragma once
/// Times in nanoseconds, counted in buckets that are less than one percent wide.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sidestep::bench {

class Histogram {
 public:
  /// The number and count of each bucket that is not empty. Nodes report in this form.
  using Sparse = std::vector<std::pair<size_t, uint64_t>>;

  void add(uint64_t value) noexcept { ++counts_[bucket(value)]; }

  void merge(const Sparse& other) {
    for (const auto& [number, count] : other)
      if (number < counts_.size()) counts_[number] += count;
  }

  Sparse sparse() const {
    Sparse result;
    for (size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] != 0) result.emplace_back(i, counts_[i]);
    return result;
  }

  uint64_t total() const noexcept {
    uint64_t sum = 0;
    for (const uint64_t count : counts_) sum += count;
    return sum;
  }

  /// Returns the value below which `share` of all values lie; 0 if there are no values.
  uint64_t quantile(double share) const noexcept {
    const auto wanted = static_cast<uint64_t>(share * static_cast<double>(total()));
    uint64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i)
      if ((seen += counts_[i]) > wanted) return middle(i);
    return 0;
  }

 private:
  // Below 2^8 each value has its own bucket; from there on each power of two has 2^7 buckets.
  static constexpr unsigned kBits = 7;

  static size_t bucket(uint64_t value) noexcept {
    const auto width = static_cast<unsigned>(std::bit_width(value));
    const unsigned shift = width > kBits + 1 ? width - kBits - 1 : 0;
    return (size_t{shift} << kBits) + (value >> shift);
  }

  static uint64_t middle(size_t number) noexcept {
    if (number < size_t{2} << kBits) return number;
    const size_t shift = (number >> kBits) - 1;
    return ((number - (shift << kBits)) << shift) + (uint64_t{1} << shift) / 2;
  }

  std::vector<uint64_t> counts_ = std::vector<uint64_t>(size_t{65 - kBits} << kBits);
};

}  // namespace sidestep::bench

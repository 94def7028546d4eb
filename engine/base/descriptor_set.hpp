#pragma once
/// A set of descriptor numbers.
///
/// There is one bit for each possible number, in zero pages that are touched only as far as they
/// are used. A child of fork pays for each page that it looks at, so a second level says which
/// words are worth a look; its bits are never cleared. Thread-safe, but orders nothing else: a
/// thread that has a number has learned of it in some other way.
#include <array>
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

class DescriptorSet {
 public:
  /// The hard limit of nr_open on stock kernels; larger numbers are in no set.
  static constexpr int kSize = 1 << 20;

  static constexpr bool can_contain(int fd) noexcept {
    return static_cast<unsigned>(fd) < static_cast<unsigned>(kSize);
  }
  bool contains(int fd) const noexcept {
    return can_contain(fd) && (words_[word(fd)].load(std::memory_order_relaxed) & bit(fd)) != 0;
  }
  void insert(int fd) noexcept {
    if (!can_contain(fd)) return;
    // release: the child of a fork between the two steps has a copy of this memory. It may find a
    // used word without members, but it overlooks no member.
    auto& used = used_[word(fd) / 64];
    const uint64_t word_bit = bit(static_cast<int>(word(fd)));
    if ((used.load(std::memory_order_relaxed) & word_bit) == 0)
      used.fetch_or(word_bit, std::memory_order_relaxed);
    words_[word(fd)].fetch_or(bit(fd), std::memory_order_release);
  }
  void erase(int fd) noexcept {
    if (contains(fd)) words_[word(fd)].fetch_and(~bit(fd), std::memory_order_relaxed);
  }
  /// Returns the smallest member that is not below `fd` (at least 0), or a negative number.
  int next(int fd) const noexcept {
    if (!can_contain(fd)) return -1;
    uint64_t above = ~uint64_t{0} << (fd % 64);
    for (size_t at = word(fd); at < kWords;) {
      const uint64_t members = words_[at].load(std::memory_order_relaxed) & above;
      if (members != 0) return static_cast<int>(at) * 64 + __builtin_ctzll(members);
      above = ~uint64_t{0};
      at = next_used(at + 1);
    }
    return -1;
  }

 private:
  static constexpr size_t kWords = kSize / 64;

  static constexpr size_t word(int fd) noexcept { return static_cast<unsigned>(fd) / 64; }
  static constexpr uint64_t bit(int number) noexcept {
    return uint64_t{1} << (static_cast<unsigned>(number) % 64);
  }
  size_t next_used(size_t at) const noexcept {
    uint64_t above = ~uint64_t{0} << (at % 64);
    for (size_t i = at / 64; i < used_.size(); ++i, above = ~uint64_t{0}) {
      const uint64_t used = used_[i].load(std::memory_order_relaxed) & above;
      if (used != 0) return i * 64 + static_cast<size_t>(__builtin_ctzll(used));
    }
    return kWords;
  }

  std::array<std::atomic<uint64_t>, kWords / 64> used_{};
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

}  // namespace sidestep::engine

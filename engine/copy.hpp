#pragma once
/// Copies of few bytes, as a small message is: a call of memcpy() through the library's table of
/// addresses, and the choice that it makes by the size, take longer than such a copy by hand.
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace sidestep::engine {

/// One word of a copy, which the compiler does not take for a part of a longer one that it knows a
/// function for.
inline void copy_word(std::byte* to, const std::byte* from) noexcept {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  asm("" : "+r"(word));
  std::memcpy(to, &word, sizeof word);
}

/// memcpy().
inline void copy_bytes(std::byte* to, const std::byte* from, size_t size) noexcept {
  constexpr size_t kWord = sizeof(uint64_t);
  constexpr size_t kFew = 128;
  if (size < kWord || size > kFew) {
    std::memcpy(to, from, size);
    return;
  }
  for (size_t at = 0; at < size - kWord; at += kWord) copy_word(to + at, from + at);
  copy_word(to + size - kWord, from + size - kWord);
}

}  // namespace sidestep::engine

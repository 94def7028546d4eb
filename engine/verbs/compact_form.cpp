#include "engine/verbs/compact_form.hpp"

#include <cstring>

namespace sidestep::engine::verbs {
namespace {

constexpr unsigned kLengthAt = kCompactStreamBits;
constexpr unsigned kGenerationAt = kLengthAt + kCompactLengthBits;
constexpr unsigned kReceivedAt = kGenerationAt + kCompactGenerationBits;

constexpr uint32_t bits(uint64_t word, unsigned at, unsigned count) noexcept {
  return static_cast<uint32_t>(word >> at & ((uint64_t{1} << count) - 1));
}

/// Like trailer_check(), in 32 bits: covers the payload and what is said about it.
uint32_t compact_check(const std::byte* payload, uint32_t length, uint32_t sequence, uint64_t word,
                       bool hashed) noexcept {
  // The factor is odd, so no two sequences have the same product. Half of its bits are ones, so a
  // difference in the word as well hardly ever makes up for it.
  constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
  const uint64_t seed = word ^ sequence * kSpread;
  const uint64_t check = few_bytes_check({payload, hashed ? length : 0}, seed);
  return static_cast<uint32_t>(check ^ check >> 32);
}

}  // namespace

std::span<const std::byte> write_compact_end(std::span<std::byte, kCompactPlace> place,
                                             const FragmentHeader& header, const std::byte* payload,
                                             const Trailer& trailer, bool hashed) noexcept {
  const uint64_t word = uint64_t{header.stream} | uint64_t{header.length} << kLengthAt |
                        uint64_t{header.generation} << kGenerationAt |
                        uint64_t{trailer.received} << kReceivedAt;
  const uint32_t check = compact_check(payload, header.length, trailer.sequence, word, hashed);
  std::byte* const end = place.data() + (kCompactPlace - kCompactEnd);
  std::memset(place.data(), 0, kCompactPlace - kCompactEnd);
  std::memcpy(end, &word, sizeof word);
  std::memcpy(end + sizeof word, &check, sizeof check);
  return is_compact(header.length + kCompactEnd) ? place.last(kCompactEnd)
                                                 : place.first(kCompactPlace);
}

bool read_compact(std::span<const std::byte> arrived, FragmentHeader& header, Trailer& trailer,
                  bool hashed) noexcept {
  const auto length = static_cast<uint32_t>(arrived.size());
  if (!is_compact(length)) return false;
  const std::byte* const end = arrived.data() + length - kCompactEnd;
  uint64_t word = 0;
  uint32_t check = 0;
  std::memcpy(&word, end, sizeof word);
  std::memcpy(&check, end + sizeof word, sizeof check);
  header = {bits(word, 0, kCompactStreamBits),
            bits(word, kLengthAt, kCompactLengthBits),
            bits(word, kGenerationAt, kCompactGenerationBits),
            static_cast<uint8_t>(FragmentType::data),
            {}};
  trailer.received = bits(word, kReceivedAt, kCompactReceivedBits);
  const uint32_t tail = is_compact(header.length + kCompactEnd) ? kCompactEnd : kCompactPlace;
  return header.length != 0 && header.length <= kMaxCompactPayload &&
         header.length + tail == length &&
         check == compact_check(arrived.data(), header.length, trailer.sequence, word, hashed);
}

}  // namespace sidestep::engine::verbs

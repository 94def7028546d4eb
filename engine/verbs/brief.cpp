#include "engine/verbs/brief.hpp"

#include <cstring>

#include "engine/copy.hpp"

namespace sidestep::engine::verbs {
namespace {

constexpr unsigned kLengthAt = kBriefStreamBits;
constexpr unsigned kGenerationAt = kLengthAt + kBriefLengthBits;
constexpr unsigned kReceivedAt = kGenerationAt + kBriefGenerationBits;

constexpr uint32_t bits(uint64_t word, unsigned at, unsigned count) noexcept {
  return static_cast<uint32_t>(word >> at & ((uint64_t{1} << count) - 1));
}

/// As trailer_check(), in 32 bits: of the payload, and of what is said of it.
uint32_t brief_check(const std::byte* payload, uint32_t length, uint32_t sequence, uint64_t word,
                     bool hashed) noexcept {
  // Odd: no two sequences have the same product. Half of its bits are ones, so what differs in the
  // word, too, hardly ever makes up for it.
  constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
  const uint64_t seed = word ^ sequence * kSpread;
  const uint64_t check = few_bytes_check({payload, hashed ? length : 0}, seed);
  return static_cast<uint32_t>(check ^ check >> 32);
}

}  // namespace

std::span<const std::byte> write_brief_end(std::span<std::byte, kBriefPlace> place,
                                           const FragmentHeader& header, const std::byte* payload,
                                           const Trailer& trailer, bool hashed) noexcept {
  const uint64_t word = uint64_t{header.stream} | uint64_t{header.length} << kLengthAt |
                        uint64_t{header.generation} << kGenerationAt |
                        uint64_t{trailer.received} << kReceivedAt;
  const uint32_t check = brief_check(payload, header.length, trailer.sequence, word, hashed);
  std::byte* const end = place.data() + (kBriefPlace - kBriefEnd);
  std::memset(place.data(), 0, kBriefPlace - kBriefEnd);
  std::memcpy(end, &word, sizeof word);
  std::memcpy(end + sizeof word, &check, sizeof check);
  return is_brief(header.length + kBriefEnd) ? place.last(kBriefEnd) : place.first(kBriefPlace);
}

uint32_t expand_brief(std::span<std::byte> buffer, uint32_t length, Trailer& trailer,
                      bool hashed) noexcept {
  if (!is_brief(length) || length > buffer.size()) return 0;
  const std::byte* const end = buffer.data() + length - kBriefEnd;
  uint64_t word = 0;
  uint32_t check = 0;
  std::memcpy(&word, end, sizeof word);
  std::memcpy(&check, end + sizeof word, sizeof check);
  const FragmentHeader header{bits(word, 0, kBriefStreamBits),
                              bits(word, kLengthAt, kBriefLengthBits),
                              bits(word, kGenerationAt, kBriefGenerationBits),
                              static_cast<uint8_t>(FragmentType::data),
                              {}};
  const auto size = static_cast<uint32_t>(fragment_size(header.length));
  const uint32_t tail = is_brief(header.length + kBriefEnd) ? kBriefEnd : kBriefPlace;
  if (header.length == 0 || header.length > kMaxBriefPayload || header.length + tail != length ||
      size > buffer.size() ||
      check != brief_check(buffer.data(), header.length, trailer.sequence, word, hashed))
    return 0;
  trailer.received = bits(word, kReceivedAt, kBriefReceivedBits);
  // To where the header leaves off, from the end: what a word overwrites has been moved. The last
  // one takes a little of what stands behind the payload along, into what is padding.
  constexpr size_t kWord = sizeof(uint64_t);
  static_assert(sizeof header >= kWord && kBriefEnd >= kWord);
  for (size_t at = (header.length + kWord - 1) / kWord * kWord; at != 0; at -= kWord)
    copy_word(buffer.data() + sizeof header + at - kWord, buffer.data() + at - kWord);
  std::memcpy(buffer.data(), &header, sizeof header);
  return size;
}

}  // namespace sidestep::engine::verbs

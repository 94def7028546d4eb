#pragma once
/// The short form of a work request: a little data of one stream, which is what most are of a
/// program that asks and answers.
///
/// Header, padding and trailer (trailer.hpp) would take 48 bytes beside a message of 64; this takes
/// 12. Behind the bytes of the stream stands what the other end can't know by itself:
///
///     payload | 0 or 4 zero bytes | u64: stream, length, generation, received | u32: check
///
/// An ordinary work request is a multiple of kOrbGrain long and a trailer; the zero bytes see to it
/// that a short one never is, so its length tells them apart. The sequence is not sent: both ends
/// count, and the check covers it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/verbs/trailer.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::verbs {

/// Of the two numbers behind the payload. Little-endian; the bits of the first from the lowest.
inline constexpr unsigned kBriefStreamBits = 17;
inline constexpr unsigned kBriefLengthBits = 8;
inline constexpr unsigned kBriefGenerationBits = 30;
/// Of Trailer::received, of which no more are under way than half of what these tell apart.
inline constexpr unsigned kBriefReceivedBits = 9;
static_assert(kBriefStreamBits + kBriefLengthBits + kBriefGenerationBits + kBriefReceivedBits ==
              64);

inline constexpr uint32_t kBriefEnd = 12;
/// Room for what stands behind the payload: as much as a trailer takes.
inline constexpr uint32_t kBriefPlace = sizeof(Trailer);
inline constexpr uint32_t kMaxBriefPayload = kMaxFewBytes;
static_assert(kMaxBriefPayload < 1U << kBriefLengthBits);
static_assert(kBriefPlace == kBriefEnd + 4);

/// Whether a work request of `length` bytes of the ring that begins with this fragment has a short
/// form.
constexpr bool has_brief_form(const FragmentHeader& header, uint32_t length) noexcept {
  return header.type == static_cast<uint8_t>(FragmentType::data) && header.length != 0 &&
         header.length <= kMaxBriefPayload && length == fragment_size(header.length) &&
         header.stream >> kBriefStreamBits == 0 && header.generation >> kBriefGenerationBits == 0;
}

/// Whether a work request that is `length` bytes long has the short form.
constexpr bool is_brief(uint32_t length) noexcept {
  return length > kBriefEnd && length % kOrbGrain != sizeof(Trailer) % kOrbGrain;
}

/// What is sent behind the payload, which follows the header: the result is the end of `place`.
/// `trailer` has the sequence and what was received; `hashed` as in trailer_check(). Thread-safe.
std::span<const std::byte> write_brief_end(std::span<std::byte, kBriefPlace> place,
                                           const FragmentHeader& header, const std::byte* payload,
                                           const Trailer& trailer, bool hashed) noexcept;

/// Of what has arrived: the header of the fragment that it stands for, whose payload it begins
/// with. `trailer` has the expected sequence, and gets the low kBriefReceivedBits of what was
/// received. False: it is not what was sent. Thread-safe.
bool read_brief(std::span<const std::byte> arrived, FragmentHeader& header, Trailer& trailer,
                bool hashed) noexcept;

}  // namespace sidestep::engine::verbs

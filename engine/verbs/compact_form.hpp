#pragma once
/// The compact form of a work request: a little data of one stream. Most work requests of a program
/// that asks and answers are of this kind.
///
/// Header, padding and trailer (trailer.hpp) would add 48 bytes to a message of 64; the compact
/// form adds 12. Behind the bytes of the stream stands what the other end can't know by itself:
///
///     payload | 0 or 4 zero bytes | u64: stream, length, generation, received | u32: check
///
/// The length of an ordinary work request is a multiple of kOrbGrain plus a trailer. The zero bytes
/// make sure that a compact one never has such a length, so the length tells the two forms apart.
/// The sequence is not sent: both ends count, and the check covers it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/verbs/trailer.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::verbs {

/// Layout of the two numbers behind the payload. They are little-endian; the fields of the first
/// start at its lowest bit.
inline constexpr unsigned kCompactStreamBits = 17;
inline constexpr unsigned kCompactLengthBits = 8;
inline constexpr unsigned kCompactGenerationBits = 30;
/// Low bits of Trailer::received: no more work requests are under way than half of the values that
/// these bits tell apart.
inline constexpr unsigned kCompactReceivedBits = 9;
static_assert(kCompactStreamBits + kCompactLengthBits + kCompactGenerationBits +
                  kCompactReceivedBits ==
              64);

inline constexpr uint32_t kCompactEnd = 12;
/// Room for what stands behind the payload: the size of a trailer.
inline constexpr uint32_t kCompactPlace = sizeof(Trailer);
inline constexpr uint32_t kMaxCompactPayload = kMaxFewBytes;
static_assert(kMaxCompactPayload < 1U << kCompactLengthBits);
static_assert(kCompactPlace == kCompactEnd + 4);

/// True if a work request of `length` bytes of the ring that begins with this fragment has a short
/// form.
constexpr bool has_compact_form(const FragmentHeader& header, uint32_t length) noexcept {
  return header.type == static_cast<uint8_t>(FragmentType::data) && header.length != 0 &&
         header.length <= kMaxCompactPayload && length == fragment_size(header.length) &&
         header.stream >> kCompactStreamBits == 0 &&
         header.generation >> kCompactGenerationBits == 0;
}

/// True if a work request that is `length` bytes long is in the compact form.
constexpr bool is_compact(uint32_t length) noexcept {
  return length > kCompactEnd && length % kOrbGrain != sizeof(Trailer) % kOrbGrain;
}

/// Writes what is sent behind the payload, which follows the header, and returns it: the end of
/// `place`. `trailer` has the sequence and what was received; `hashed` is as in trailer_check().
/// Thread-safe.
std::span<const std::byte> write_compact_end(std::span<std::byte, kCompactPlace> place,
                                             const FragmentHeader& header, const std::byte* payload,
                                             const Trailer& trailer, bool hashed) noexcept;

/// Reads what has arrived, which begins with the payload of the fragment that it stands for.
/// `header` gets the header of that fragment. `trailer` has the expected sequence, and gets the low
/// kCompactReceivedBits of what was received. False if it is not what was sent. Thread-safe.
bool read_compact(std::span<const std::byte> arrived, FragmentHeader& header, Trailer& trailer,
                  bool hashed) noexcept;

}  // namespace sidestep::engine::verbs

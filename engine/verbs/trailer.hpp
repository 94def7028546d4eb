#pragma once
/// What stands behind the fragments of a work request, and shows that it arrived as it was sent.
///
/// A reliable connection promises each message once, in order and whole. Soft-RoCE does not keep
/// that when it retransmits: an acknowledgement that arrives while a message is sent for the second
/// time can make the next ones start a packet late, so that the receiver sees a packet twice inside
/// a message, or a message twice. So every work request that is not empty is numbered and says
/// how long it is, and where the device is made of software its bytes are hashed too: one that is
/// not what was sent breaks the connection instead of reaching a program.
///
/// A little data of one stream is sent in a shorter form, which shows the same: brief.hpp.
///
/// It also confirms: the sender keeps what it has sent until the receiver's engine has it, and not
/// only the receiver's adapter. What an adapter loses when it fails or is removed is sent again on
/// the anchors (engine/stream/recovery.hpp).
#include <cstddef>
#include <cstdint>
#include <span>

namespace sidestep::engine::verbs {

/// The last bytes of a work request. Little-endian.
struct Trailer {
  uint32_t sequence;  // 0: of the work requests with a trailer, from 0, mod 2^32
  uint32_t received;  // 4: work requests with payload that its sender has received in all
  uint64_t check;     // 8: of everything before it, see trailer_check()
};
static_assert(sizeof(Trailer) == 16);

struct TrailerPiece {
  const std::byte* data;
  uint32_t length;
};
/// Trailer::check for a payload that may lie in several pieces. `hashed`: over the bytes; else over
/// their number alone. Both ends have agreed on it. Thread-safe.
uint64_t trailer_check(std::span<const TrailerPiece> payload, const Trailer& trailer,
                       bool hashed) noexcept;
/// A hash of few bytes, kMaxFewBytes at most, that takes half the work of that one. Thread-safe.
/// Not inline: it has one way for each range of lengths, and who calls it is on the hot path.
[[gnu::noinline]] uint64_t few_bytes_check(std::span<const std::byte> bytes,
                                           uint64_t seed) noexcept;
inline constexpr size_t kMaxFewBytes = 240;

}  // namespace sidestep::engine::verbs

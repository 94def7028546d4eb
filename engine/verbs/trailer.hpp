#pragma once
/// The trailer stands behind the fragments of a work request and shows that it arrived as it was
/// sent.
///
/// A reliable connection promises each message once, in order and whole. Soft-RoCE breaks that
/// promise when it retransmits: an acknowledgment that arrives while a message is sent for the
/// second time can make the next messages start a packet late, so that the receiver sees a packet
/// twice inside a message, or a message twice. So every work request that is not empty is numbered
/// and says how long it is. If the device is made of software, its bytes are hashed too. A work
/// request that is not what was sent breaks the connection instead of reaching a program.
///
/// A little data of one stream is sent in a compact form, which shows the same: compact_form.hpp.
///
/// The trailer also confirms: the sender keeps what it has sent until the receiver's engine has it,
/// not only the receiver's adapter. What an adapter loses when it fails or is removed is sent again
/// on the anchors (engine/stream/recovery.hpp).
#include <cstddef>
#include <cstdint>
#include <span>

namespace sidestep::engine::verbs {

/// The last bytes of a work request. Little-endian.
struct Trailer {
  uint32_t sequence;  // 0: counts the work requests with payload, from 0, mod 2^32
  uint32_t received;  // 4: work requests with payload that its sender has received in all
  uint64_t check;     // 8: of everything before it, see trailer_check()
};
static_assert(sizeof(Trailer) == 16);

struct TrailerPiece {
  const std::byte* data;
  uint32_t length;
};
/// Returns Trailer::check for a payload that may lie in several pieces. If `hashed`, it covers the
/// bytes, otherwise only their number. Both ends have agreed on that. Thread-safe.
uint64_t trailer_check(std::span<const TrailerPiece> payload, const Trailer& trailer,
                       bool hashed) noexcept;
/// Hashes few bytes, at most kMaxFewBytes, with half the work of trailer_check(). Thread-safe. Not
/// inline: it has a path for each range of lengths, and its callers are on the hot path.
[[gnu::noinline]] uint64_t few_bytes_check(std::span<const std::byte> bytes,
                                           uint64_t seed) noexcept;
inline constexpr size_t kMaxFewBytes = 240;

}  // namespace sidestep::engine::verbs

#include "engine/verbs/trailer.hpp"

// All inline, so that none of it becomes a symbol of the preloaded library.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sidestep::engine::verbs {

static_assert(kMaxFewBytes == XXH3_MIDSIZE_MAX);

uint64_t few_bytes_check(std::span<const std::byte> bytes, uint64_t seed) noexcept {
  // The code with which XXH3 hashes more bytes is far longer, and not wanted here.
  if (bytes.size() > kMaxFewBytes) __builtin_unreachable();
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t trailer_check(std::span<const TrailerPiece> payload, const Trailer& trailer,
                       bool hashed) noexcept {
  const uint64_t seed = uint64_t{trailer.received} << 32 | trailer.sequence;
  uint64_t length = 0;
  for (const TrailerPiece& piece : payload) length += piece.length;
  // The number of bytes stands for the bytes.
  if (!hashed) return XXH64(&length, sizeof length, seed);
  // The usual case: one piece needs no state to collect pieces in.
  if (payload.size() == 1) return XXH64(payload[0].data, payload[0].length, seed);
  XXH64_state_t state;
  XXH64_reset(&state, seed);
  for (const TrailerPiece& piece : payload) XXH64_update(&state, piece.data, piece.length);
  return XXH64_digest(&state);
}

}  // namespace sidestep::engine::verbs

#pragma once
/// Codes that prove who made a message: HMAC-SHA256 (RFC 2104, FIPS 180-4). The hash and the
/// comparison are libsodium's, linked in statically. Any thread; nothing is allocated.
#include <array>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

using Digest = std::array<uint8_t, 32>;

Digest sha256(const void* data, size_t size) noexcept;
Digest hmac_sha256(const void* key, size_t key_size, const void* data, size_t size) noexcept;

/// Takes equally long wherever the two differ, so that nobody can find a code byte by byte.
bool same_digest(const Digest& a, const Digest& b) noexcept;

}  // namespace sidestep::engine

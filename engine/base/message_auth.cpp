#include "engine/base/message_auth.hpp"

#include <sodium/crypto_hash_sha256.h>
#include <sodium/crypto_verify_32.h>

#include <cstring>

// libsodium's SHA-256 clears its traces with this function. libsodium's own version lies in an
// object file that draws in a third of that library, including its random numbers. These call
// open() and read(), which inside the preloaded library are the shim's names. With this version,
// only two object files get in, and they make no other call. It is weak, so that a libsodium whose
// SHA-256 needs more than this can still bring its own.
extern "C" __attribute__((weak)) void sodium_memzero(void* const data, const size_t size) {
  explicit_bzero(data, size);
}

namespace sidestep::engine {
namespace {

constexpr size_t kBlock = 64;  // of SHA-256

static_assert(crypto_hash_sha256_BYTES == std::tuple_size_v<Digest>);
static_assert(crypto_verify_32_BYTES == std::tuple_size_v<Digest>);

/// Returns the hash of a block (the key, combined with `pad`) followed by the data.
Digest padded_hash(const std::array<uint8_t, kBlock>& key, uint8_t pad, const void* data,
                   size_t size) noexcept {
  std::array<uint8_t, kBlock> block;
  for (size_t i = 0; i < kBlock; ++i) block[i] = key[i] ^ pad;
  crypto_hash_sha256_state state;
  Digest digest;
  crypto_hash_sha256_init(&state);
  crypto_hash_sha256_update(&state, block.data(), block.size());
  crypto_hash_sha256_update(&state, static_cast<const unsigned char*>(data), size);
  crypto_hash_sha256_final(&state, digest.data());
  explicit_bzero(block.data(), block.size());
  return digest;
}

}  // namespace

Digest sha256(const void* data, size_t size) noexcept {
  Digest digest;
  crypto_hash_sha256(digest.data(), static_cast<const unsigned char*>(data), size);
  return digest;
}

Digest hmac_sha256(const void* key, size_t key_size, const void* data, size_t size) noexcept {
  std::array<uint8_t, kBlock> block{};
  if (key_size > kBlock) {
    const Digest hashed = sha256(key, key_size);
    std::memcpy(block.data(), hashed.data(), hashed.size());
  } else if (key_size != 0) {
    std::memcpy(block.data(), key, key_size);
  }
  const Digest inner = padded_hash(block, 0x36, data, size);
  const Digest digest = padded_hash(block, 0x5c, inner.data(), inner.size());
  explicit_bzero(block.data(), block.size());
  return digest;
}

bool same_digest(const Digest& a, const Digest& b) noexcept {
  return crypto_verify_32(a.data(), b.data()) == 0;
}

}  // namespace sidestep::engine

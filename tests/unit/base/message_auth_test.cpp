#include "engine/base/message_auth.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <string>

using namespace sidestep::engine;

namespace {

std::string hex(const Digest& digest, size_t bytes = std::tuple_size_v<Digest>) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    text += two;
  }
  return text;
}

std::string sha256_of(const std::string& data) {
  return hex(sha256(data.data(), data.size()));
}

std::string hmac_of(const std::string& key, const std::string& data, size_t bytes = 32) {
  return hex(hmac_sha256(key.data(), key.size(), data.data(), data.size()), bytes);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(message_auth)

BOOST_AUTO_TEST_CASE(sha256_gives_what_fips_180_4_says) {
  BOOST_CHECK_EQUAL(sha256_of(""),
                    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  BOOST_CHECK_EQUAL(sha256_of("abc"),
                    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  BOOST_CHECK_EQUAL(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
                    "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  BOOST_CHECK_EQUAL(sha256_of(std::string(1'000'000, 'a')),
                    "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

BOOST_AUTO_TEST_CASE(hmac_gives_what_rfc_4231_says) {
  BOOST_CHECK_EQUAL(hmac_of(std::string(20, '\x0b'), "Hi There"),
                    "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  BOOST_CHECK_EQUAL(hmac_of("Jefe", "what do ya want for nothing?"),
                    "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  BOOST_CHECK_EQUAL(hmac_of(std::string(20, '\xaa'), std::string(50, '\xdd')),
                    "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counted;
  for (char c = 1; c <= 25; ++c) counted += c;
  BOOST_CHECK_EQUAL(hmac_of(counted, std::string(50, '\xcd')),
                    "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  // Test case 5 gives only the first half of the code.
  BOOST_CHECK_EQUAL(hmac_of(std::string(20, '\x0c'), "Test With Truncation", 16),
                    "a3b6167473100ee06e0c796c2955552b");
  // The keys of the remaining cases are longer than a block.
  const std::string long_key(131, '\xaa');
  BOOST_CHECK_EQUAL(hmac_of(long_key, "Test Using Larger Than Block-Size Key - Hash Key First"),
                    "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  BOOST_CHECK_EQUAL(
      hmac_of(
          long_key,
          "This is a test using a larger than block-size key and a larger than block-size data. "
          "The key needs to be hashed before being used by the HMAC algorithm."),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

BOOST_AUTO_TEST_CASE(a_key_as_long_as_a_block_is_taken_as_it_is) {
  const std::string block(64, 'k');
  BOOST_CHECK_EQUAL(hmac_of(block, "x"),
                    "f91c4c403625fb06910ef93999265bbd2d62baeaec6ff36455498cc124fe3e66");
  BOOST_CHECK_EQUAL(hmac_of(block + 'k', "x"),
                    "75092ca3ee2b307470c227697b42b3e65376aa3bae98fb5a1f7b7536daa9588a");
  BOOST_CHECK_EQUAL(hmac_of("", ""),
                    "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

BOOST_AUTO_TEST_CASE(digests_are_the_same_only_if_every_bit_is) {
  const Digest one = sha256("abc", 3);
  BOOST_CHECK(same_digest(one, one));
  for (size_t byte = 0; byte < one.size(); ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      Digest other = one;
      other[byte] = static_cast<uint8_t>(other[byte] ^ 1 << bit);
      BOOST_CHECK(!same_digest(one, other));
    }
}

BOOST_AUTO_TEST_SUITE_END()

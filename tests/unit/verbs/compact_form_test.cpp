// The compact form of a work request: what goes in comes out, and nothing else does.
#include "engine/verbs/compact_form.hpp"

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

using namespace sidestep::engine;
using namespace sidestep::engine::verbs;

namespace {

constexpr uint32_t kStream = (1U << kCompactStreamBits) - 1;
constexpr uint32_t kGeneration = (1U << kCompactGenerationBits) - 1;
constexpr Trailer kSent{0x80000007, 300, 0};

FragmentHeader data_of(uint32_t length) {
  return {kStream, length, kGeneration, static_cast<uint8_t>(FragmentType::data), {}};
}

std::vector<std::byte> payload_of(uint32_t length) {
  std::vector<std::byte> payload(length);
  for (size_t i = 0; i < length; ++i) payload[i] = static_cast<std::byte>(i * 31 + length);
  return payload;
}

/// Returns the bytes of the work request.
std::vector<std::byte> sent(const std::vector<std::byte>& payload, bool hashed) {
  std::vector<std::byte> request = payload;
  std::array<std::byte, kCompactPlace> place;
  const auto end = write_compact_end(place, data_of(static_cast<uint32_t>(payload.size())),
                                     payload.data(), kSent, hashed);
  request.insert(request.end(), end.begin(), end.end());
  return request;
}

/// True if `arrived` is accepted as a work request that was sent with this sequence number.
bool is_taken(const std::vector<std::byte>& arrived, bool hashed,
              uint32_t sequence = kSent.sequence) {
  Trailer trailer{sequence, 0, 0};
  FragmentHeader header;
  return read_compact(arrived, header, trailer, hashed);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(compact_form)

BOOST_AUTO_TEST_CASE(a_fragment_of_any_length_comes_out_as_it_went_in) {
  for (const bool hashed : {false, true}) {
    for (uint32_t length = 1; length <= kMaxCompactPayload; ++length) {
      const std::vector<std::byte> payload = payload_of(length);
      BOOST_REQUIRE(
          has_compact_form(data_of(length), static_cast<uint32_t>(fragment_size(length))));
      const std::vector<std::byte> arrived = sent(payload, hashed);
      BOOST_REQUIRE(is_compact(static_cast<uint32_t>(arrived.size())));
      BOOST_REQUIRE_LE(arrived.size(), length + kCompactPlace);
      Trailer trailer{kSent.sequence, 0, 0};
      FragmentHeader header;
      BOOST_REQUIRE(read_compact(arrived, header, trailer, hashed));
      const FragmentHeader expected = data_of(length);
      BOOST_CHECK_EQUAL(std::memcmp(&header, &expected, sizeof header), 0);
      BOOST_CHECK(std::equal(payload.begin(), payload.end(), arrived.begin()));
      BOOST_CHECK_EQUAL(trailer.received, kSent.received);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_message_of_64_bytes_takes_76) {
  BOOST_CHECK_EQUAL(sent(payload_of(64), true).size(), 76);
}

BOOST_AUTO_TEST_CASE(an_ordinary_work_request_is_not_a_short_one) {
  for (uint32_t fragments = 0; fragments < 4096; fragments += kOrbGrain)
    BOOST_CHECK(!is_compact(fragments + static_cast<uint32_t>(sizeof(Trailer))));
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_has_no_short_form) {
  const auto fits = [](FragmentHeader header, uint32_t more = 0) {
    return has_compact_form(header, static_cast<uint32_t>(fragment_size(header.length)) + more);
  };
  BOOST_CHECK(fits(data_of(64)));
  BOOST_CHECK(!fits(data_of(64), kOrbGrain));  // another fragment follows
  BOOST_CHECK(!fits(data_of(0)));
  BOOST_CHECK(!fits(data_of(kMaxCompactPayload + 1)));
  FragmentHeader header = data_of(64);
  header.stream = kStream + 1;
  BOOST_CHECK(!fits(header));
  header = data_of(64);
  header.generation = kGeneration + 1;
  BOOST_CHECK(!fits(header));
  header = data_of(8);
  header.type = static_cast<uint8_t>(FragmentType::credit);
  BOOST_CHECK(!fits(header));
}

BOOST_AUTO_TEST_CASE(one_that_is_lost_or_comes_twice_is_found) {
  for (const bool hashed : {false, true}) {
    for (const uint32_t other : {kSent.sequence - 1, kSent.sequence + 1}) {
      BOOST_CHECK(!is_taken(sent(payload_of(64), hashed), hashed, other));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_bit_that_differs_is_found_where_the_bytes_are_hashed) {
  for (const uint32_t length : {1U, 4U, 64U, kMaxCompactPayload}) {
    const std::vector<std::byte> whole = sent(payload_of(length), true);
    for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
      if (bit / 8 >= length && bit / 8 < whole.size() - kCompactEnd) continue;  // the zero bytes
      std::vector<std::byte> buffer = whole;
      buffer[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      BOOST_CHECK(!is_taken(buffer, true));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_length_that_differs_is_found) {
  for (const bool hashed : {false, true}) {
    for (const int more : {-4, -1, 1, 4}) {
      std::vector<std::byte> buffer = sent(payload_of(64), hashed);
      if (more > 0) {
        buffer.insert(buffer.begin(), static_cast<size_t>(more), std::byte{});
      } else {
        buffer.erase(buffer.begin(), buffer.begin() - more);
      }
      BOOST_CHECK(!is_taken(buffer, hashed));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_length_that_only_its_bits_have_room_for_is_refused) {
  for (const uint32_t length : {kMaxCompactPayload + 2, (1U << kCompactLengthBits) - 1}) {
    std::vector<std::byte> buffer(length + kCompactEnd);
    const uint64_t word = kStream | uint64_t{length} << kCompactStreamBits;
    std::memcpy(buffer.data() + length, &word, sizeof word);
    BOOST_REQUIRE(is_compact(static_cast<uint32_t>(buffer.size())));
    for (const bool hashed : {false, true}) BOOST_CHECK(!is_taken(buffer, hashed));
  }
}

BOOST_AUTO_TEST_SUITE_END()

// What a work request's trailer reveals about the bytes that arrived before it.
#include "engine/verbs/trailer.hpp"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

using namespace sidestep::engine::verbs;

namespace {

constexpr size_t kPacket = 4096;
constexpr Trailer kTrailer{7, 3, 0};

/// Returns five packets that all differ from one another.
std::vector<std::byte> a_payload() {
  std::vector<std::byte> payload(5 * kPacket);
  for (size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<std::byte>(i * 31 + i / kPacket);
  return payload;
}

uint64_t check_of(const std::vector<std::byte>& payload, const Trailer& trailer, bool hashed) {
  const TrailerPiece piece{payload.data(), static_cast<uint32_t>(payload.size())};
  return trailer_check({&piece, 1}, trailer, hashed);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(trailer)

BOOST_AUTO_TEST_CASE(pieces_have_the_check_of_the_whole) {
  const std::vector<std::byte> payload = a_payload();
  for (const bool hashed : {false, true}) {
    const TrailerPiece pieces[] = {{payload.data(), 8192},
                                   {payload.data() + 8192, 8192},
                                   {payload.data() + 16384, 4096},
                                   {payload.data() + 20480, 0}};
    BOOST_CHECK_EQUAL(trailer_check(pieces, kTrailer, hashed), check_of(payload, kTrailer, hashed));
  }
}

BOOST_AUTO_TEST_CASE(a_packet_too_many_or_too_few_is_found) {
  const std::vector<std::byte> payload = a_payload();
  auto longer = payload;
  longer.insert(longer.begin() + 2 * kPacket, payload.begin() + kPacket,
                payload.begin() + 2 * kPacket);
  auto shorter = payload;
  shorter.erase(shorter.begin(), shorter.begin() + kPacket);
  for (const bool hashed : {false, true})
    for (const auto& other : {longer, shorter})
      BOOST_CHECK_NE(check_of(payload, kTrailer, hashed), check_of(other, kTrailer, hashed));
}

BOOST_AUTO_TEST_CASE(a_packet_in_the_place_of_another_is_found_where_the_bytes_are_hashed) {
  const std::vector<std::byte> payload = a_payload();
  auto other = payload;
  std::memcpy(other.data() + 2 * kPacket, payload.data() + kPacket, kPacket);
  BOOST_CHECK_NE(check_of(payload, kTrailer, true), check_of(other, kTrailer, true));
  BOOST_CHECK_EQUAL(check_of(payload, kTrailer, false), check_of(other, kTrailer, false));
}

BOOST_AUTO_TEST_CASE(what_the_trailer_itself_says_is_covered) {
  const std::vector<std::byte> payload = a_payload();
  for (const bool hashed : {false, true}) {
    const uint64_t check = check_of(payload, kTrailer, hashed);
    BOOST_CHECK_NE(check_of(payload, {8, 3, 0}, hashed), check);
    BOOST_CHECK_NE(check_of(payload, {7, 4, 0}, hashed), check);
  }
}

BOOST_AUTO_TEST_CASE(a_trailer_alone_has_a_check) {
  for (const bool hashed : {false, true})
    BOOST_CHECK_NE(check_of({}, kTrailer, hashed), check_of({}, {8, 3, 0}, hashed));
}

BOOST_AUTO_TEST_SUITE_END()

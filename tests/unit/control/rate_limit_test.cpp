// How many unsigned datagrams a node listens to.
#include "engine/control/rate_limit.hpp"

#include <boost/test/unit_test.hpp>

using sidestep::engine::RateLimit;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

RateLimit::Ip mapped(uint32_t number) {
  RateLimit::Ip ip{};
  ip[10] = ip[11] = 0xff;
  for (size_t i = 0; i < 4; ++i) ip[12 + i] = static_cast<uint8_t>(number >> (8 * i));
  return ip;
}

/// Returns how many of `count` datagrams are allowed at `now`.
uint64_t allowed(RateLimit& limit, const RateLimit::Ip& source, uint64_t now, uint64_t count) {
  uint64_t allowed = 0;
  for (uint64_t i = 0; i < count; ++i) allowed += limit.allows(source, now) ? 1 : 0;
  return allowed;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(rate_limit)

BOOST_AUTO_TEST_CASE(a_burst_is_listened_to_and_then_so_many_in_a_second) {
  RateLimit limit(7);
  BOOST_CHECK_EQUAL(allowed(limit, mapped(1), kSecond, 100'000), RateLimit::kBurst);
  BOOST_CHECK_EQUAL(allowed(limit, mapped(1), 2 * kSecond, 100'000), RateLimit::kPerSecond);
  BOOST_CHECK_EQUAL(allowed(limit, mapped(1), 12 * kSecond, 100'000), 10 * RateLimit::kPerSecond);
  BOOST_CHECK_EQUAL(allowed(limit, mapped(1), 1'000 * kSecond, 100'000), RateLimit::kBurst);
}

BOOST_AUTO_TEST_CASE(one_source_leaves_room_for_another) {
  RateLimit limit(7);
  allowed(limit, mapped(1), kSecond, 1'000'000);
  BOOST_CHECK(limit.allows(mapped(2), kSecond));
}

BOOST_AUTO_TEST_CASE(all_together_have_a_limit_of_their_own) {
  RateLimit limit(7);
  uint64_t count = 0;
  for (uint32_t source = 0; source < 100'000; ++source)
    count += allowed(limit, mapped(source), kSecond, 1);
  BOOST_CHECK_EQUAL(count, RateLimit::kForAll * RateLimit::kBurst);
  count = 0;
  for (uint32_t source = 0; source < 100'000; ++source)
    count += allowed(limit, mapped(source), 2 * kSecond, 1);
  BOOST_CHECK_EQUAL(count, RateLimit::kForAll * RateLimit::kPerSecond);
}

BOOST_AUTO_TEST_CASE(a_network_of_ipv6_is_one_source) {
  RateLimit limit(7);
  uint64_t count = 0;
  for (uint32_t host = 0; host < 100'000; ++host) {
    RateLimit::Ip ip{0x20, 0x01, 0x0d, 0xb8};
    for (size_t i = 0; i < 4; ++i) ip[12 + i] = static_cast<uint8_t>(host >> (8 * i));
    count += allowed(limit, ip, 100 * kSecond, 1);
  }
  BOOST_CHECK_EQUAL(count, RateLimit::kBurst);
  BOOST_CHECK(!limit.allows({0x20, 0x01, 0x0d, 0xb8}, 100 * kSecond));
}

BOOST_AUTO_TEST_SUITE_END()

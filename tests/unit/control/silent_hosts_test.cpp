#include "engine/control/silent_hosts.hpp"

#include <boost/test/unit_test.hpp>

using sidestep::engine::SilentHosts;

namespace {
SilentHosts::Ip host(uint32_t number) {
  SilentHosts::Ip ip{};
  for (size_t i = 0; i < 4; ++i) ip[12 + i] = static_cast<uint8_t>(number >> (8 * i));
  return ip;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(silent_hosts)

BOOST_AUTO_TEST_CASE(a_host_is_believed_to_be_silent_until_the_time_is_over) {
  SilentHosts hosts;
  hosts.add(host(1), 0, 100);
  BOOST_CHECK(hosts.contains(host(1), 99));
  BOOST_CHECK(!hosts.contains(host(1), 100));
  BOOST_CHECK(!hosts.contains(host(2), 0));
}

BOOST_AUTO_TEST_CASE(one_that_answers_is_not_silent) {
  SilentHosts hosts;
  hosts.add(host(1), 0, 100);
  hosts.remove(host(1));
  BOOST_CHECK(!hosts.contains(host(1), 0));
  hosts.add(host(1), 1, 200);  // some time later it is silent again
  BOOST_CHECK(hosts.contains(host(1), 150));
}

BOOST_AUTO_TEST_CASE(those_whose_time_is_over_take_no_memory) {
  SilentHosts hosts;
  for (uint32_t i = 0; i < 1000; ++i) hosts.add(host(i), i, i + 10);
  BOOST_CHECK_LE(hosts.size(), 11u);
}

BOOST_AUTO_TEST_CASE(a_million_clients_take_no_more_memory_than_a_few_thousand) {
  SilentHosts hosts;
  for (uint32_t i = 0; i < 1'000'000; ++i) hosts.add(host(i), 0, 1000);
  BOOST_CHECK_EQUAL(hosts.size(), SilentHosts::kMost);
  BOOST_CHECK(hosts.contains(host(999'999), 0));
  BOOST_CHECK(!hosts.contains(host(0), 0));
}

BOOST_AUTO_TEST_CASE(one_host_that_comes_again_and_again_takes_no_more_memory) {
  SilentHosts hosts;
  for (uint32_t i = 0; i < 100'000; ++i) {
    hosts.add(host(1), 0, 1000 + i);
    hosts.remove(host(1));
  }
  hosts.add(host(2), 0, 1000);
  BOOST_CHECK_EQUAL(hosts.size(), 1u);
  BOOST_CHECK(hosts.contains(host(2), 0));
}

BOOST_AUTO_TEST_SUITE_END()

#include "engine/control/known_hosts.hpp"

#include <boost/test/unit_test.hpp>

using sidestep::engine::Address;
using sidestep::engine::KnownHosts;

namespace {

constexpr uint64_t kSecond = KnownHosts::kSecond;

Address host(uint8_t last) {
  Address address;
  address.ip[15] = last;
  return address;
}

struct Fixture {
  std::vector<Address> gone;
  KnownHosts hosts;
  uint64_t now = 100 * kSecond;
  std::vector<Address> due() {
    gone.clear();
    return hosts.due(now, gone);
  }
  /// Asks once a second, ten times at most, until hosts are believed gone. Returns these.
  std::vector<Address> wait_until_gone() {
    for (int i = 0; i < 10; ++i, now += kSecond) {
      due();
      if (!gone.empty()) return gone;
    }
    return {};
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(known_hosts)

BOOST_FIXTURE_TEST_CASE(an_empty_list_asks_nobody, Fixture) {
  BOOST_CHECK_EQUAL(hosts.next_at(), 0u);
  BOOST_CHECK(due().empty());
}

BOOST_FIXTURE_TEST_CASE(a_new_host_is_asked_at_once_and_again_until_it_answers, Fixture) {
  hosts.update({host(1)}, now);
  BOOST_CHECK_EQUAL(hosts.next_at(), now);
  BOOST_CHECK(due() == std::vector{host(1)});
  BOOST_CHECK(due().empty());
  now += kSecond;
  BOOST_CHECK(due() == std::vector{host(1)});
  BOOST_CHECK(hosts.answered(host(1).ip, now));
  BOOST_CHECK(!hosts.answered(host(1).ip, now));
  now += kSecond;
  BOOST_CHECK(due().empty());
  BOOST_CHECK_GT(hosts.next_at(), now + 10 * kSecond);
}

BOOST_FIXTURE_TEST_CASE(a_host_that_answers_no_more_is_gone_once_and_is_news_when_it_answers,
                        Fixture) {
  hosts.update({host(1)}, now);
  BOOST_CHECK(wait_until_gone() == std::vector{host(1)});
  BOOST_CHECK(wait_until_gone().empty());
  BOOST_CHECK(hosts.answered(host(1).ip, now));
  hosts.ask_soon(host(1).ip, now);
  BOOST_CHECK(wait_until_gone() == std::vector{host(1)});
}

BOOST_FIXTURE_TEST_CASE(a_new_list_keeps_what_is_known_of_those_who_stay, Fixture) {
  hosts.update({host(1), host(2)}, now);
  hosts.answered(host(1).ip, now);
  hosts.update({host(1), host(3)}, now);
  BOOST_CHECK(!hosts.answered(host(2).ip, now));
  BOOST_CHECK(due() == std::vector{host(3)});
}

BOOST_AUTO_TEST_CASE(numbers_are_looked_up_and_nonsense_is_left_out) {
  const auto found = KnownHosts::look_up({"10.77.0.1", "::1", "10.77.0.1", "no.such.host.invalid"});
  BOOST_REQUIRE_EQUAL(found.size(), 2u);
  BOOST_CHECK_EQUAL(ip_text(found[0]), "10.77.0.1");
  BOOST_CHECK_EQUAL(ip_text(found[1]), "::1");
}

BOOST_AUTO_TEST_SUITE_END()

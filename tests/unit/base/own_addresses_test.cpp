#include "engine/base/own_addresses.hpp"

#include <arpa/inet.h>

#include <boost/test/unit_test.hpp>

using namespace sidestep::engine;

namespace {

Address ipv4(const char* text) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  BOOST_REQUIRE_EQUAL(inet_pton(AF_INET, text, &in.sin_addr), 1);
  return *to_address(reinterpret_cast<const sockaddr*>(&in));
}

}  // namespace

BOOST_AUTO_TEST_CASE(own_addresses_are_those_of_the_interfaces) {
  OwnAddresses own;
  BOOST_CHECK(own.contains(ipv4("127.0.0.1"), 1));
  BOOST_CHECK(!own.contains(ipv4("192.0.2.1"), 2));  // TEST-NET-1
  BOOST_CHECK(own.contains(ipv4("127.0.0.1"), 60'000'000'000));
}

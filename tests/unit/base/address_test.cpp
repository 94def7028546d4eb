#include "engine/base/address.hpp"

#include <arpa/inet.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <set>

using namespace sidestep::engine;

namespace {

Address formed(const void* address, size_t size) {
  sockaddr_storage storage{};
  std::memcpy(&storage, address, size);
  return to_address(reinterpret_cast<const sockaddr*>(&storage)).value();
}

Address four(const char* text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, text, &address.sin_addr);
  return formed(&address, sizeof address);
}

Address six(const char* text, uint16_t port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  inet_pton(AF_INET6, text, &address.sin6_addr);
  return formed(&address, sizeof address);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(address)

BOOST_AUTO_TEST_CASE(a_mapped_address_is_the_ipv4_address) {
  BOOST_CHECK(four("10.1.2.3", 80) == six("::ffff:10.1.2.3", 80));
  BOOST_CHECK(!(four("10.1.2.3", 80) == four("10.1.2.3", 81)));
  BOOST_CHECK(!(four("10.1.2.3", 80) == six("::10.1.2.3", 80)));
}

BOOST_AUTO_TEST_CASE(the_mirror_of_one_end_is_the_other_end) {
  const Tuple tuple{four("10.0.0.1", 1000), six("::1", 2000)};
  BOOST_CHECK(tuple.mirrored().local == tuple.remote);
  BOOST_CHECK(tuple.mirrored().mirrored() == tuple);
  BOOST_CHECK(!(tuple.mirrored() == tuple));
}

BOOST_AUTO_TEST_CASE(only_internet_addresses_have_a_form) {
  for (const sa_family_t family : {sa_family_t{AF_UNIX}, sa_family_t{AF_UNSPEC}}) {
    sockaddr_storage other{};
    other.ss_family = family;
    BOOST_CHECK(!to_address(reinterpret_cast<const sockaddr*>(&other)));
  }
}

BOOST_AUTO_TEST_CASE(text_is_what_people_write) {
  BOOST_CHECK_EQUAL(to_string(four("10.1.2.3", 80)), "10.1.2.3:80");
  BOOST_CHECK_EQUAL(to_string(six("::ffff:10.1.2.3", 80)), "10.1.2.3:80");
  BOOST_CHECK_EQUAL(to_string(six("fe80::1", 65535)), "[fe80::1]:65535");
  const std::string longest = "1234:5678:9abc:def0:1234:5678:9abc:def0";
  BOOST_CHECK_EQUAL(text_of(six(longest.c_str(), 65535)).c_str(), "[" + longest + "]:65535");
  BOOST_CHECK_EQUAL(text_of(four("255.255.255.255", 0)).c_str(), "255.255.255.255:0");
}

BOOST_AUTO_TEST_CASE(loopback_is_all_of_127_and_one_of_ipv6) {
  BOOST_CHECK(is_loopback(four("127.0.0.1", 0)));
  BOOST_CHECK(is_loopback(four("127.255.3.9", 0)));
  BOOST_CHECK(is_loopback(six("::1", 0)));
  BOOST_CHECK(!is_loopback(four("128.0.0.1", 0)));
  BOOST_CHECK(!is_loopback(six("::2", 0)));
  BOOST_CHECK(!is_loopback(six("::", 0)));
}

BOOST_AUTO_TEST_CASE(connections_of_one_server_have_different_hashes) {
  std::set<size_t> hashes;
  for (uint16_t port = 1; port <= 10'000; ++port)
    hashes.insert(TupleHash()({four("127.0.0.1", 80), four("127.0.0.1", port)}));
  BOOST_CHECK_EQUAL(hashes.size(), 10'000u);
}

BOOST_AUTO_TEST_SUITE_END()

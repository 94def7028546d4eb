// What proves that two namespaces are on one network, and what does not.
#include "engine/control/network_path.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string>

using namespace sidestep::engine;

namespace {

using Ip = NetworkPaths::Ip;
using Probe = NetworkPaths::Probe;

constexpr uint16_t kAsker = 11;
constexpr uint16_t kAsked = 22;

constexpr Ip mapped(uint8_t last) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last};
}
constexpr Ip kLoopback6 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};

bool has_datagram(const NetworkPaths& paths) {
  pollfd polled{paths.fd(), POLLIN, 0};
  return poll(&polled, 1, 5'000) == 1;
}

/// The node that asks and the node that is asked. The latter sees the former at `there`.
struct Two {
  Two() {
    BOOST_REQUIRE_GE(asker.open(), 0);
    BOOST_REQUIRE_GE(asked.open(), 0);
    BOOST_CHECK_EQUAL(asker.open(), asker.fd());
    BOOST_CHECK_NE(asker.port(), asked.port());
  }

  Probe send(const Ip& here, const Ip& there) {
    asked.probe({kAsker, here, there}, asker.port(), kAsked);
    BOOST_REQUIRE(has_datagram(asker));
    const auto arrived = asker.receive(number);
    BOOST_REQUIRE(arrived.has_value());
    return *arrived;
  }

  NetworkPaths asker;
  NetworkPaths asked;
  uint64_t number = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(network_path)

BOOST_AUTO_TEST_CASE(a_number_that_comes_back_proves_the_way_to_both) {
  for (const auto& [here, there] :
       {std::pair{mapped(7), mapped(8)}, std::pair{kLoopback6, kLoopback6}}) {
    Two two;
    const Probe arrived = two.send(here, there);
    BOOST_CHECK((arrived == Probe{kAsked, there, here}));
    two.asker.expect(two.number, arrived);
    BOOST_CHECK(!two.asker.is_proven(arrived));
    const Probe sent{kAsker, here, there};
    BOOST_CHECK(!two.asked.is_proven(sent));
    BOOST_CHECK(two.asked.confirm(two.number, sent));
    BOOST_CHECK(two.asked.is_proven(sent));
    BOOST_CHECK(two.asker.accept(two.number, arrived));
    BOOST_CHECK(two.asker.is_proven(arrived));
    // This proves nothing about other nodes or other addresses.
    BOOST_CHECK(!two.asked.is_proven({kAsker + 1, here, there}));
    BOOST_CHECK(!two.asked.is_proven({kAsker, here, mapped(9)}));
    BOOST_CHECK(!two.asked.is_proven({kAsker, mapped(9), there}));
    two.asked.forget(kAsker);
    BOOST_CHECK(!two.asked.is_proven(sent));
  }
}

BOOST_AUTO_TEST_CASE(nothing_else_proves_it) {
  Two two;
  const Ip here = mapped(1);
  const Ip there = mapped(2);
  const Probe arrived = two.send(here, there);
  const Probe sent{kAsker, here, there};
  BOOST_CHECK(!two.asked.confirm(two.number + 1, sent));
  BOOST_CHECK(!two.asked.confirm(two.number, {kAsker + 1, here, there}));
  BOOST_CHECK(!two.asked.confirm(two.number, {kAsker, here, mapped(3)}));
  BOOST_CHECK(!two.asked.confirm(two.number, {kAsker, mapped(3), there}));
  BOOST_CHECK(!two.asker.accept(two.number, arrived));  // nobody expects it
  two.asker.expect(two.number, arrived);
  BOOST_CHECK(!two.asker.accept(two.number, {kAsked + 1, arrived.own, arrived.other}));
  BOOST_CHECK(two.asked.confirm(two.number, sent));
  BOOST_CHECK(!two.asked.confirm(two.number, sent));  // only once
}

BOOST_AUTO_TEST_CASE(the_last_number_counts) {
  Two two;
  const Probe sent{kAsker, mapped(1), mapped(2)};
  two.send(mapped(1), mapped(2));
  const uint64_t first = two.number;
  two.send(mapped(1), mapped(2));
  BOOST_CHECK_NE(first, two.number);
  BOOST_CHECK(!two.asked.confirm(first, sent));
  BOOST_CHECK(two.asked.confirm(two.number, sent));
}

BOOST_AUTO_TEST_CASE(other_datagrams_are_passed_over) {
  Two two;
  const int stranger = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(two.asker.port());
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PathDatagram sound;
  sound.nid = kAsked;
  PathDatagram other_version = sound;
  ++other_version.version;
  PathDatagram nobody = sound;
  nobody.nid = 0;
  const std::string longer(reinterpret_cast<const char*>(&sound), sizeof sound);
  const auto send = [&](const void* data, size_t size) {
    sendto(stranger, data, size, 0, reinterpret_cast<sockaddr*>(&to), sizeof to);
  };
  send("", 0);
  send(&sound, sizeof sound - 1);
  send((longer + "x").data(), longer.size() + 1);
  send(&other_version, sizeof other_version);
  send(&nobody, sizeof nobody);
  const Probe arrived = two.send(mapped(1), mapped(1));
  BOOST_CHECK_EQUAL(arrived.nid, kAsked);
  BOOST_CHECK(!two.asker.receive(two.number).has_value());
  close(stranger);
}

BOOST_AUTO_TEST_SUITE_END()

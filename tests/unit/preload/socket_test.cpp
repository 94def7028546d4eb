// Tracked sockets whose numbers are closed without the library seeing it.
#include <fcntl.h>

#include <boost/test/unit_test.hpp>

#include "preload/tracking.hpp"
#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using tests::BoundPair;

BOOST_AUTO_TEST_SUITE(socket_numbers)

namespace {

/// Closes the accepted end of `old` past the library and gives its number to another connection,
/// which is tracked. Returns the other end of that connection.
int give_number_away(const BoundPair& old) {
  const int fd = old.fd(1);
  const auto [client, server] = tests::connect_loopback();
  BOOST_REQUIRE_EQUAL(dup3(server, fd, O_CLOEXEC), fd);  // the C library's, not interposed
  close(server);
  preload::lose_number(fd);
  preload::track(fd, true, true, nullptr);
  return client;
}

bool resets_at_close(int fd) {
  linger value{};
  socklen_t length = sizeof value;
  getsockopt(fd, SOL_SOCKET, SO_LINGER, &value, &length);
  return value.l_onoff != 0;
}

ssize_t read_from(preload::Socket& socket) {
  char bytes[8];
  const iovec part{bytes, sizeof bytes};
  return socket.receive(&part, 1, MSG_DONTWAIT);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_next_connection_with_the_number_is_a_stream_of_its_own) {
  const BoundPair old;
  preload::Socket* const before = &old.socket(1);
  const uint32_t stream = old.stream(1).id();
  const int client = give_number_away(old);
  BOOST_CHECK(preload::FdTable::peek(old.fd(1)) != nullptr);
  BOOST_CHECK(&old.socket(1) != before || old.stream(1).id() != stream);
  BOOST_CHECK(!old.stream(1).is_bound());
  // The peer of the old stream learns of its end over the engine.
  BOOST_CHECK(tests::eventually([&] { return old.stream(0).receiver().peer_has_finished(); }));
  BOOST_CHECK_EQUAL(read_from(old.socket(0)), 0);
  // The new stream works.
  BOOST_REQUIRE_EQUAL(send(client, "new", 3, 0), 3);
  BOOST_CHECK(tests::eventually([&] { return read_from(old.socket(1)) == 3; }));
  close(client);
}

BOOST_AUTO_TEST_CASE(what_the_old_one_had_not_read_does_not_reset_the_next) {
  const BoundPair old;
  const char byte = 'x';
  const iovec part{const_cast<char*>(&byte), 1};
  BOOST_REQUIRE_EQUAL(old.socket(0).transmit(&part, 1, 0), 1);
  BOOST_REQUIRE(tests::eventually([&] { return old.stream(1).receiver().queued() == 1; }));
  const int client = give_number_away(old);
  BOOST_CHECK(!resets_at_close(old.fd(1)));
  BOOST_CHECK(tests::eventually([&] { return old.stream(0).is_aborted(); }));
  close(client);
}

BOOST_AUTO_TEST_SUITE_END()

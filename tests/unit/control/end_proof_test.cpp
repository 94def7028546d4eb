// Proofs of who holds an end of a connection: what the kernel shows, and what proves nothing.
#include "engine/control/end_proof.hpp"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <string>

using namespace sidestep::engine;

namespace {

Address address_of(int fd, bool peer) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  auto* const address = reinterpret_cast<sockaddr*>(&storage);
  BOOST_REQUIRE_EQUAL((peer ? getpeername : getsockname)(fd, address, &size), 0);
  return *to_address(address);
}

/// The two ends of one connection over loopback.
struct Ends {
  explicit Ends(int family = AF_INET) {
    sockaddr_in6 six{};
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_loopback;
    auto* const address =
        family == AF_INET ? reinterpret_cast<sockaddr*>(&four) : reinterpret_cast<sockaddr*>(&six);
    socklen_t size = family == AF_INET ? sizeof four : sizeof six;
    listener = socket(family, SOCK_STREAM, 0);
    BOOST_REQUIRE_EQUAL(bind(listener, address, size), 0);
    BOOST_REQUIRE_EQUAL(listen(listener, 4), 0);
    BOOST_REQUIRE_EQUAL(getsockname(listener, address, &size), 0);
    client = socket(family, SOCK_STREAM, 0);
    BOOST_REQUIRE_EQUAL(connect(client, address, size), 0);
    server = accept(listener, nullptr, nullptr);
    BOOST_REQUIRE_GE(server, 0);
    as_client_sees = {address_of(client, false), address_of(client, true)};
  }
  ~Ends() {
    for (const int fd : {listener, client, server})
      if (fd >= 0) close(fd);
  }
  int listener, client, server;
  Tuple as_client_sees;
  KernelEnds list;
};

EndHolder me(int fd) {
  return {getpid(), static_cast<int32_t>(syscall(SYS_gettid)), fd, -1};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(end_proof)

BOOST_AUTO_TEST_CASE(the_kernel_lists_both_ends) {
  for (const int family : {AF_INET, AF_INET6}) {
    Ends ends(family);
    const auto client = ends.list.find(ends.as_client_sees, 0);
    const auto server = ends.list.find(ends.as_client_sees.mirrored(), 0);
    BOOST_REQUIRE(client && server);
    BOOST_TEST(client->inode != server->inode);
    BOOST_TEST(is_open(client->state));
    BOOST_CHECK(ends.list.look(me(ends.client), ends.as_client_sees, ends.server) ==
                EndProof::shown);
    BOOST_CHECK(ends.list.look(me(ends.server), ends.as_client_sees.mirrored(), ends.client) ==
                EndProof::shown);
  }
}

BOOST_AUTO_TEST_CASE(a_port_that_only_listens_is_no_end) {
  Ends ends;
  Tuple nobody = ends.as_client_sees.mirrored();
  nobody.remote.port = static_cast<uint16_t>(nobody.remote.port ^ 1U);
  BOOST_TEST(!ends.list.find(nobody, 0).has_value());
}

BOOST_AUTO_TEST_CASE(another_socket_proves_nothing) {
  Ends ends;
  const Ends others;
  BOOST_CHECK(ends.list.look(me(others.client), ends.as_client_sees, ends.server) ==
              EndProof::not_shown);
  BOOST_CHECK(ends.list.look(me(ends.server), ends.as_client_sees, ends.server) ==
              EndProof::not_shown);
  BOOST_CHECK(ends.list.look(me(-1), ends.as_client_sees, ends.server) == EndProof::not_shown);
  // The caller's own end has to belong to this connection, too.
  BOOST_CHECK(ends.list.look(me(ends.client), ends.as_client_sees, others.server) ==
              EndProof::not_shown);
}

BOOST_AUTO_TEST_CASE(another_process_proves_nothing_by_a_number) {
  Ends ends;
  int ready[2];
  BOOST_REQUIRE_EQUAL(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends.client);
    char byte = 0;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  BOOST_REQUIRE_EQUAL(read(ready[0], &byte, 1), 1);
  const EndHolder other{child, child, ends.client, ends.client};
  BOOST_CHECK(ends.list.look(other, ends.as_client_sees, ends.server) == EndProof::not_shown);
  // The process does hold the server's end, though.
  const EndHolder server{child, child, ends.server, -1};
  BOOST_CHECK(ends.list.look(server, ends.as_client_sees.mirrored(), ends.client) ==
              EndProof::shown);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (const int fd : ready) close(fd);
}

BOOST_AUTO_TEST_CASE(only_the_kernel_is_believed) {
  Ends ends;
  Tuple nobody = ends.as_client_sees;
  nobody.local.port = static_cast<uint16_t>(nobody.local.port ^ 1U);
  BOOST_TEST(!ends.list.find(nobody, 0).has_value());  // from now on the list has a netlink address
  struct {
    nlmsghdr header;
    inet_diag_msg body;
  } forged{};
  forged.header.nlmsg_len = sizeof forged;
  forged.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  forged.header.nlmsg_seq = 2;  // the number of the next question
  forged.body.id.idiag_sport = htons(nobody.local.port);
  forged.body.id.idiag_dport = htons(nobody.remote.port);
  forged.body.idiag_inode = 1;
  forged.body.idiag_state = 1;
  const int stranger = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  // Sends to everybody with an address there. A process's first socket usually has its pid.
  int sent = 0;
  std::ifstream list("/proc/net/netlink");
  std::string line;
  for (std::getline(list, line); std::getline(list, line);) {
    unsigned protocol = 0;
    unsigned port = 0;
    if (std::sscanf(line.c_str(), "%*x %u %u", &protocol, &port) != 2) continue;
    if (protocol != NETLINK_SOCK_DIAG || port == 0) continue;
    sockaddr_nl to{};
    to.nl_family = AF_NETLINK;
    to.nl_pid = port;
    const ssize_t result = sendto(stranger, &forged, sizeof forged, MSG_DONTWAIT,
                                  reinterpret_cast<const sockaddr*>(&to), sizeof to);
    sent += result == sizeof forged ? 1 : 0;
  }
  // Without CAP_NET_ADMIN the kernel accepts none of these.
  BOOST_TEST_MESSAGE("forged answers: " << sent);
  BOOST_TEST(!ends.list.find(nobody, 0).has_value());
  close(stranger);
}

BOOST_AUTO_TEST_CASE(an_end_that_is_no_more_is_not_held) {
  Ends ends;
  const linger reset{1, 0};
  setsockopt(ends.client, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  close(ends.client);
  BOOST_CHECK(ends.list.look(me(ends.client), ends.as_client_sees, ends.server) ==
              EndProof::not_shown);
  ends.client = -1;
}

BOOST_AUTO_TEST_CASE(a_process_that_can_not_be_seen_shows_a_token) {
  Ends ends;
  const int token = end_token(ends.client);
  BOOST_REQUIRE_GE(token, 0);
  char byte = 0;
  BOOST_TEST(recv(token, &byte, 1, MSG_DONTWAIT) == -1);
  BOOST_TEST(errno == EBADF);
  EndHolder holder{0, 1, ends.client, token};
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees, ends.server) == EndProof::shown);
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees.mirrored(), ends.client) ==
              EndProof::not_shown);
  holder.token = -1;
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees, ends.server) == EndProof::not_shown);
  close(token);
}

BOOST_AUTO_TEST_CASE(a_process_of_another_user_shows_a_token_of_what_is_that_user_s) {
  Ends ends;
  const int token = end_token(ends.client);
  // This process can be inspected, which does not count here.
  EndHolder holder = me(ends.client);
  holder.is_own = false;
  holder.uid = getuid();
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees, ends.server) == EndProof::not_shown);
  holder.token = token;
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees, ends.server) == EndProof::shown);
  holder.uid = getuid() + 1;
  BOOST_CHECK(ends.list.look(holder, ends.as_client_sees, ends.server) == EndProof::not_shown);
  close(token);
}

BOOST_AUTO_TEST_CASE(what_two_ends_have_counted_fits) {
  Ends ends;
  const auto both_fit = [&] {
    return may_fit(counts_of(ends.client, false), ends.server) &&
           may_fit(counts_of(ends.server, true), ends.client);
  };
  BOOST_CHECK(both_fit());
  char bytes[1000] = {};
  BOOST_REQUIRE_EQUAL(send(ends.client, bytes, sizeof bytes, 0), 1000);
  BOOST_CHECK(both_fit());  // whether or not the bytes are read or acknowledged
  BOOST_REQUIRE_EQUAL(recv(ends.server, bytes, sizeof bytes, MSG_WAITALL), 1000);
  BOOST_REQUIRE_EQUAL(send(ends.server, bytes, 10, 0), 10);
  BOOST_REQUIRE_EQUAL(recv(ends.client, bytes, 10, MSG_WAITALL), 10);
  BOOST_CHECK(both_fit());
  const EndCounts server = counts_of(ends.server, true);
  BOOST_CHECK_EQUAL(server.received, 1000u);
  const EndCounts client = counts_of(ends.client, false);
  BOOST_CHECK_EQUAL(client.received, 10u);
  BOOST_CHECK_EQUAL(client.acked, 1000u);  // the server's bytes carried the acknowledgment
  BOOST_REQUIRE_EQUAL(shutdown(ends.client, SHUT_WR), 0);
  for (int i = 0; i < 500 && tcp_state(ends.client) != TcpState::fin_wait2; ++i) usleep(10'000);
  BOOST_CHECK(tcp_state(ends.client) == TcpState::fin_wait2);
  BOOST_CHECK(both_fit());
  BOOST_CHECK_EQUAL(counts_of(ends.server, true).received, 1000u);  // a FIN is not counted
  BOOST_CHECK_EQUAL(counts_of(ends.client, false).acked, 1000u);
}

BOOST_AUTO_TEST_CASE(what_was_never_sent_does_not_fit) {
  Ends ends;
  BOOST_REQUIRE_EQUAL(send(ends.client, "12345", 5, 0), 5);
  BOOST_CHECK(may_fit({5, 0}, ends.client));
  BOOST_CHECK(!may_fit({6, 0}, ends.client));
  BOOST_CHECK(!may_fit({0, 1}, ends.client));
  BOOST_CHECK(may_fit({0, 0}, ends.client));  // an end whose kernel does not report its counts
  BOOST_CHECK(may_fit({~uint64_t{0}, 0}, -1));
}

BOOST_AUTO_TEST_SUITE_END()

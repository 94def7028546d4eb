// connect and accept: how connections begin, and what can go wrong.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// A listening socket that the destructor closes.
struct Listener {
  explicit Listener(int family = AF_INET) : fd(listen_loopback(address, length, family)) {}
  ~Listener() { close(fd); }
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&address); }
  sockaddr_storage address;
  socklen_t length = 0;
  int fd;
};

/// Settles a connected pair of which only the descriptors are known, uses it both ways, and closes
/// it.
void use_and_close(int client, int server) {
  settle(client, server);
  give(client, "there");
  NOTE(take(server, 5));
  give(server, "back");
  NOTE(take(client, 4));
  for (const int fd : {client, server}) {
    forget(fd);
    close(fd);
  }
}

int new_socket(int family = AF_INET, int flags = 0) {
  return socket(family, SOCK_STREAM | flags, 0);
}

std::string error_of(int fd) {
  int error = -1;
  socklen_t length = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return errno_name(error);
}

}  // namespace

CASE(lifecycle, blocking) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, ipv6) {
  Listener listener(AF_INET6);
  const int client = new_socket(AF_INET6);
  SEE(connect(client, listener.generic(), listener.length));
  sockaddr_in6 from{};
  socklen_t length = sizeof from;
  const int server = accept(listener.fd, reinterpret_cast<sockaddr*>(&from), &length);
  NOTE(length);
  NOTE(static_cast<int>(from.sin6_family));
  use_and_close(client, server);
}

CASE(lifecycle, ipv4_in_an_ipv6_socket) {
  // A JVM makes all its connections like this.
  Listener listener;
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = reinterpret_cast<const sockaddr_in&>(listener.address).sin_port;
  inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
  const int client = new_socket(AF_INET6);
  SEE(connect(client, reinterpret_cast<sockaddr*>(&mapped), sizeof mapped));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, bound_first) {
  Listener listener;
  const int client = new_socket();
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SEE(bind(client, reinterpret_cast<sockaddr*>(&own), sizeof own));
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, nonblocking) {
  Listener listener;
  const int client = new_socket(AF_INET, SOCK_NONBLOCK);
  const int result = connect(client, listener.generic(), listener.length);
  NOTE(result == 0 || errno == EINPROGRESS);
  pollfd writable{client, POLLOUT, 0};
  SEE(poll(&writable, 1, 5000));
  NOTE(error_of(client));
  const int server = accept(listener.fd, nullptr, nullptr);
  char byte;
  SEE(recv(client, &byte, 1, 0));
  set_nonblocking(client, false);
  use_and_close(client, server);
}

CASE(lifecycle, refused) {
  Listener* listener = new Listener;
  const sockaddr_storage address = listener->address;
  const socklen_t length = listener->length;
  delete listener;
  const int client = new_socket();
  SEE(connect(client, reinterpret_cast<const sockaddr*>(&address), length));
  SEE(send(client, "x", 1, MSG_NOSIGNAL));
  char byte;
  SEE(recv(client, &byte, 1, 0));
  close(client);
}

CASE(lifecycle, refused_and_then_not) {
  Listener* gone = new Listener;
  const sockaddr_storage address = gone->address;
  const socklen_t length = gone->length;
  delete gone;
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, reinterpret_cast<const sockaddr*>(&address), length));
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, refused_nonblocking_and_then_not) {
  Listener* gone = new Listener;
  const sockaddr_storage address = gone->address;
  const socklen_t length = gone->length;
  delete gone;
  Listener listener;
  const int client = new_socket(AF_INET, SOCK_NONBLOCK);
  NOTE(connect(client, reinterpret_cast<const sockaddr*>(&address), length) < 0);
  pollfd over{client, POLLOUT, 0};
  SEE(poll(&over, 1, 5000));
  NOTE(error_of(client));
  const int again = connect(client, listener.generic(), listener.length);
  NOTE(again == 0 || errno == EINPROGRESS);
  SEE(poll(&over, 1, 5000));
  NOTE(error_of(client));
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  set_nonblocking(client, false);
  use_and_close(client, server);
}

CASE(lifecycle, twice) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, wrong_addresses) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), 1));
  SEE(connect(client, nullptr, listener.length));
  sockaddr_storage strange{};
  strange.ss_family = 77;
  SEE(connect(client, reinterpret_cast<sockaddr*>(&strange), listener.length));
  SEE(connect(-1, listener.generic(), listener.length));
  SEE(connect(0, listener.generic(), listener.length) == 0);
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, disconnect) {
  // AF_UNSPEC dissolves the connection; the socket can be connected again.
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  int server = accept(listener.fd, nullptr, nullptr);
  settle(client, server);
  give(client, "x");
  NOTE(take(server, 1));
  forget(client);
  forget(server);
  sockaddr none{};
  none.sa_family = AF_UNSPEC;
  SEE(connect(client, &none, sizeof none));
  await_end(server);
  char byte;
  SEE(recv(server, &byte, 1, 0));
  close(server);
  SEE(connect(client, listener.generic(), listener.length));
  server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, accept_without_a_connection) {
  Listener listener;
  set_nonblocking(listener.fd);
  SEE(accept(listener.fd, nullptr, nullptr));
  SEE(accept4(listener.fd, nullptr, nullptr, 0));
  SEE(accept4(listener.fd, nullptr, nullptr, 0x40000000));
  SEE(accept(-1, nullptr, nullptr));
  const int client = new_socket();
  SEE(accept(client, nullptr, nullptr));
  close(client);
}

CASE(lifecycle, accept_waits) {
  Listener listener;
  const int client = new_socket();
  const Later later(20, [&] { (void)!connect(client, listener.generic(), listener.length); });
  const int server = accept(listener.fd, nullptr, nullptr);
  use_and_close(client, server);
}

CASE(lifecycle, accept_interrupted) {
  Listener listener;
  const Interruptions interruptions(false);
  SEE(accept(listener.fd, nullptr, nullptr));
}

CASE(lifecycle, accept_and_its_limit) {
  Listener listener;
  set_receive_timeout(listener.fd, 30);
  SEE(accept(listener.fd, nullptr, nullptr));
}

CASE(lifecycle, accepted_with_flags) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept4(listener.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  NOTE((fcntl(server, F_GETFL, 0) & O_NONBLOCK) != 0);
  NOTE((fcntl(server, F_GETFD, 0) & FD_CLOEXEC) != 0);
  char byte;
  SEE(recv(server, &byte, 1, 0));
  set_nonblocking(server, false);
  use_and_close(client, server);
}

CASE(lifecycle, accepted_does_not_inherit_nonblocking) {
  Listener listener;
  set_nonblocking(listener.fd);
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  pollfd there{listener.fd, POLLIN, 0};
  SEE(poll(&there, 1, 5000));
  const int server = accept(listener.fd, nullptr, nullptr);
  NOTE((fcntl(server, F_GETFL, 0) & O_NONBLOCK) != 0);
  use_and_close(client, server);
}

CASE(lifecycle, accepted_inherits_timeouts) {
  Listener listener;
  set_receive_timeout(listener.fd, 30);
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  const int server = accept(listener.fd, nullptr, nullptr);
  settle(client, server);
  char byte;
  SEE(recv(server, &byte, 1, 0));
  for (const int fd : {client, server}) {
    forget(fd);
    close(fd);
  }
}

CASE(lifecycle, sent_before_it_is_accepted) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  give(client, "early ");
  const int server = accept(listener.fd, nullptr, nullptr);
  NOTE(take(server, 6));
  use_and_close(client, server);
}

CASE(lifecycle, closed_before_it_is_accepted) {
  Listener listener;
  const int client = new_socket();
  SEE(connect(client, listener.generic(), listener.length));
  give(client, "last words");
  close(client);
  const int server = accept(listener.fd, nullptr, nullptr);
  NOTE(take(server, 20));
  close(server);
}

CASE(lifecycle, several_in_order) {
  Listener listener;
  int clients[4];
  for (int i = 0; i < 4; ++i) {
    clients[i] = new_socket();
    SEE(connect(clients[i], listener.generic(), listener.length));
    give(clients[i], std::to_string(i));
  }
  for (const int client : clients) {
    const int server = accept(listener.fd, nullptr, nullptr);
    NOTE(take(server, 1));
    use_and_close(client, server);
  }
}

CASE(lifecycle, connected_to_itself) {
  const int fd = new_socket();
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof own;
  auto* const generic = reinterpret_cast<sockaddr*>(&own);
  SEE(bind(fd, generic, length));
  SEE(getsockname(fd, generic, &length));
  SEE(connect(fd, generic, length));
  give(fd, "echo");
  NOTE(take(fd, 4));
  SEE(shutdown(fd, SHUT_WR));
  NOTE(take(fd, 1));
  close(fd);
}

CASE(lifecycle, sending_goes_on_when_reading_is_shut) {
  Pair pair;
  SEE(shutdown(pair.server(), SHUT_RD));
  usleep(100'000);  // long enough to be asked what the end of the anchor means
  SEE(send(pair.server(), "still", 5, MSG_NOSIGNAL));
  NOTE(take(pair.client(), 5));
  SEE(shutdown(pair.server(), SHUT_WR));
  await_end(pair.client());
  NOTE(take(pair.client(), 1));
}

}  // namespace conformance

// getsockopt, setsockopt, ioctl, and the names of the two ends.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

struct Option {
  const char* name;
  int level;
  int number;
  int value;
};

#define OPTION(level, number, value) \
  { #number, level, number, value }
const Option kOptions[] = {
    OPTION(SOL_SOCKET, SO_KEEPALIVE, 1),   OPTION(SOL_SOCKET, SO_REUSEADDR, 1),
    OPTION(SOL_SOCKET, SO_REUSEPORT, 1),   OPTION(SOL_SOCKET, SO_OOBINLINE, 1),
    OPTION(SOL_SOCKET, SO_SNDBUF, 40'000), OPTION(SOL_SOCKET, SO_RCVBUF, 40'000),
    OPTION(SOL_SOCKET, SO_RCVLOWAT, 1),    OPTION(SOL_SOCKET, SO_PRIORITY, 2),
    OPTION(SOL_SOCKET, SO_TIMESTAMP, 1),   OPTION(SOL_SOCKET, SO_BUSY_POLL, 0),
    OPTION(IPPROTO_TCP, TCP_NODELAY, 1),   OPTION(IPPROTO_TCP, TCP_CORK, 1),
    OPTION(IPPROTO_TCP, TCP_QUICKACK, 0),  OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, 7'000),
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 30), OPTION(IPPROTO_TCP, TCP_KEEPINTVL, 5),
    OPTION(IPPROTO_TCP, TCP_KEEPCNT, 3),   OPTION(IPPROTO_TCP, TCP_MAXSEG, 1000),
    OPTION(IPPROTO_TCP, TCP_LINGER2, 20),  OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16'384),
    OPTION(IPPROTO_IP, IP_TOS, 16),        OPTION(IPPROTO_IP, IP_TTL, 40),
};
#undef OPTION

/// Sets the option and reads it back, before and after bytes have gone each way.
void try_option(const Option& option) {
  Pair pair;
  int value = 0;
  socklen_t length = sizeof value;
  SEE(getsockopt(pair.client(), option.level, option.number, &value, &length));
  NOTE(length);
  SEE(setsockopt(pair.client(), option.level, option.number, &option.value, sizeof option.value));
  SEE(getsockopt(pair.client(), option.level, option.number, &value, &length));
  if (option.number != TCP_QUICKACK) NOTE(value);
  give(pair.client(), text(3000));
  if (option.level == IPPROTO_TCP && option.number == TCP_CORK) {
    const int off = 0;
    SEE(setsockopt(pair.client(), IPPROTO_TCP, TCP_CORK, &off, sizeof off));
  }
  NOTE(digest(take(pair.server(), 3000)));
  give(pair.server(), "back");
  NOTE(take(pair.client(), 4));
  SEE(setsockopt(pair.client(), option.level, option.number, &option.value, 1));
  SEE(setsockopt(pair.client(), option.level, option.number, nullptr, sizeof(int)));
}

std::string name_of(int (*call)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (call(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return errno_name(errno);
  return std::to_string(address.sin_family) + " " + std::to_string(length) + " " +
         inet_ntoa(address.sin_addr) + (address.sin_port != 0 ? " port" : " none");
}

uint16_t port_of(int (*call)(int, sockaddr*, socklen_t*), int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  call(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return address.sin_port;
}

}  // namespace

CASES(options) {
  for (const Option& option : kOptions)
    add_case(std::string("options.set.") + option.name, [&option] { try_option(option); });
}

CASE(options, timeouts_are_read_back) {
  Pair pair;
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    const timeval time{1, 500'000};
    SEE(setsockopt(pair.client(), SOL_SOCKET, option, &time, sizeof time));
    timeval found{};
    socklen_t length = sizeof found;
    SEE(getsockopt(pair.client(), SOL_SOCKET, option, &found, &length));
    NOTE(found.tv_sec);
    NOTE(found.tv_usec);
    const timeval wrong{0, 2'000'000};
    SEE(setsockopt(pair.client(), SOL_SOCKET, option, &wrong, sizeof wrong));
    SEE(setsockopt(pair.client(), SOL_SOCKET, option, &time, 4));
  }
}

CASE(options, a_timeout_of_nothing_is_none) {
  Pair pair;
  set_receive_timeout(pair.server(), 20);
  set_receive_timeout(pair.server(), 0);
  const Later later(40, [&] { give(pair.client(), "x"); });
  char byte;
  SEE(recv(pair.server(), &byte, 1, 0));
}

namespace {

/// A connection whose ends had their options before it existed. `prepare` is called with the
/// listening socket, whose options the accepted socket inherits, and with the connecting socket.
class Prepared {
 public:
  template <typename Prepare>
  explicit Prepared(Prepare prepare) {
    sockaddr_storage address;
    socklen_t length = 0;
    const int listener = listen_loopback(address, length);
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    prepare(listener);
    prepare(client_);
    connect(client_, reinterpret_cast<sockaddr*>(&address), length);
    server_ = accept(listener, nullptr, nullptr);
    close(listener);
  }
  ~Prepared() {
    close_end(client_);
    close_end(server_);
  }
  Prepared(const Prepared&) = delete;

  int client() const { return client_; }
  int server() const { return server_; }
  void settle() { conformance::settle(client_, server_); }
  void close_client() { close_end(client_); }

 private:
  static void close_end(int& fd) {
    if (fd < 0) return;
    forget(fd);
    close(fd);
    fd = -1;
  }

  int client_ = -1;
  int server_ = -1;
};

}  // namespace

CASE(options, timeouts_set_before_there_is_a_connection) {
  Prepared pair([](int fd) { set_receive_timeout(fd, 20); });
  pair.settle();
  char byte;
  for (const int fd : {pair.client(), pair.server()}) {
    SEE(recv(fd, &byte, 1, 0));
    set_receive_timeout(fd, 0);
  }
  const Later later(40, [&] { give(pair.client(), "x"); });
  SEE(recv(pair.server(), &byte, 1, 0));
}

CASE(options, linger_set_before_there_is_a_connection) {
  Prepared pair([](int fd) {
    const linger now{1, 0};
    SEE(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
  });
  pair.settle();
  pair.close_client();
  await_end(pair.server());
  char byte;
  SEE(recv(pair.server(), &byte, 1, 0));
}

namespace {

/// Uses a connection of which one end has had a low-water mark since before it was connected.
void see_low_water_mark(bool of_client) {
  const Prepared pair([of_client](int fd) {
    int listens = 0;
    socklen_t length = sizeof listens;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length);
    const int mark = 3;
    if ((listens == 0) == of_client)
      SEE(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  });
  const int from = of_client ? pair.server() : pair.client();
  const int to = of_client ? pair.client() : pair.server();
  for (int i = 0; i < 10; ++i) {
    usleep(1000);  // time to leave the kernel
    give(to, "back");
    NOTE(take(from, 4));
    pollfd entry{to, POLLIN, 0};
    give(from, "a");
    SEE(poll(&entry, 1, 5));
    give(from, "bc");
    SEE(poll(&entry, 1, -1));
    NOTE(take(to, 3));
  }
}

}  // namespace

CASE(options, low_water_mark_set_before_connect) {
  see_low_water_mark(true);
}

CASE(options, low_water_mark_of_the_listening_socket) {
  see_low_water_mark(false);
}

CASE(options, a_negative_low_water_mark_is_a_high_one) {
  const Pair pair;
  int mark = -1;
  SEE(setsockopt(pair.server(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  give(pair.client(), "a");
  pollfd entry{pair.server(), POLLIN, 0};
  SEE(poll(&entry, 1, 5));
  mark = 1;
  SEE(setsockopt(pair.server(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  SEE(poll(&entry, 1, -1));
  NOTE(take(pair.server(), 1));
}

CASE(options, peeking_from_an_offset) {
  // TCP supports this since Linux 6.9.
  const Pair pair;
  const int offset = 0;
  SEE(setsockopt(pair.server(), SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));
  give(pair.client(), "abcd");
  await_bytes(pair.server(), 4);
  for (int i = 0; i < 3; ++i) {
    char byte = 0;
    SEE(recv(pair.server(), &byte, 1, MSG_PEEK));
    NOTE(byte);
  }
  NOTE(take(pair.server(), 4));
}

CASE(options, receiving_by_getsockopt) {
  struct {  // tcp_zerocopy_receive from linux/tcp.h
    uint64_t address;
    uint32_t length, recv_skip_hint, inq;
    int32_t err;
    uint64_t copybuf_address;
    int32_t copybuf_len;
    uint32_t flags;
  } request{};
  const Pair pair;
  give(pair.client(), "abcd");
  await_bytes(pair.server(), 4);
  char data[100] = "";
  request.copybuf_address = reinterpret_cast<uintptr_t>(data);
  request.copybuf_len = sizeof data;  // so few bytes are copied, not mapped
  socklen_t length = sizeof request;
  SEE(getsockopt(pair.server(), IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &length));
  NOTE(request.copybuf_len);
  NOTE(std::string(data));
  give(pair.client(), "ef");
  NOTE(take(pair.server(), 2));
}

CASE(options, linger_is_read_back) {
  Pair pair;
  const linger wanted{1, 3};
  SEE(setsockopt(pair.client(), SOL_SOCKET, SO_LINGER, &wanted, sizeof wanted));
  linger found{};
  socklen_t length = sizeof found;
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_LINGER, &found, &length));
  NOTE(found.l_onoff);
  NOTE(found.l_linger);
}

CASE(options, linger_waits_and_delivers) {
  Pair pair;
  const linger wanted{1, 5};
  SEE(setsockopt(pair.client(), SOL_SOCKET, SO_LINGER, &wanted, sizeof wanted));
  give(pair.client(), text(20'000));
  pair.close_client();
  NOTE(digest(take(pair.server(), 30'000)));
}

CASE(options, linger_turned_off_again) {
  Pair pair;
  const linger on{1, 0};
  const linger off{0, 0};
  SEE(setsockopt(pair.client(), SOL_SOCKET, SO_LINGER, &on, sizeof on));
  SEE(setsockopt(pair.client(), SOL_SOCKET, SO_LINGER, &off, sizeof off));
  give(pair.client(), "kept");
  pair.close_client();
  NOTE(take(pair.server(), 10));
}

CASE(options, facts_about_the_socket) {
  Pair pair;
  for (const int option : {SO_TYPE, SO_PROTOCOL, SO_DOMAIN, SO_ACCEPTCONN, SO_ERROR}) {
    int value = -1;
    socklen_t length = sizeof value;
    SEE(getsockopt(pair.client(), SOL_SOCKET, option, &value, &length));
    NOTE(value);
  }
  struct stat status {};
  SEE(fstat(pair.client(), &status));
  NOTE(S_ISSOCK(status.st_mode) ? true : false);
}

CASE(options, error_after_a_reset) {
  Pair pair;
  pair.reset_server();
  await_end(pair.client());
  int value = -1;
  socklen_t length = sizeof value;
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_ERROR, &value, &length));
  NOTE(errno_name(value));
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_ERROR, &value, &length));
  NOTE(errno_name(value));
  char byte;
  SEE(recv(pair.client(), &byte, 1, 0));
  SEE(send(pair.client(), "x", 1, MSG_NOSIGNAL));
}

CASE(options, error_into_too_little_room) {
  Pair pair;
  short value = -1;
  socklen_t length = sizeof value;
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_ERROR, &value, &length));
  NOTE(length);
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_ERROR, nullptr, &length));
  SEE(getsockopt(pair.client(), SOL_SOCKET, SO_ERROR, &value, nullptr));
  SEE(getsockopt(pair.client(), SOL_SOCKET, 9999, &value, &length));
}

CASE(options, tcp_info_says_established) {
  Pair pair;
  tcp_info info{};
  socklen_t length = sizeof info;
  SEE(getsockopt(pair.client(), IPPROTO_TCP, TCP_INFO, &info, &length));
  NOTE(static_cast<int>(info.tcpi_state));
}

CASE(options, names_of_the_ends) {
  Pair pair;
  NOTE(name_of(getsockname, pair.client()));
  NOTE(name_of(getpeername, pair.client()));
  NOTE(port_of(getsockname, pair.client()) == port_of(getpeername, pair.server()));
  NOTE(port_of(getpeername, pair.client()) == port_of(getsockname, pair.server()));
  pair.close_client();
  await_end(pair.server());
  NOTE(name_of(getpeername, pair.server()));
}

CASE(options, bytes_to_be_read) {
  Pair pair;
  int value = -1;
  SEE(ioctl(pair.server(), FIONREAD, &value));
  NOTE(value);
  give(pair.client(), text(123));
  await_bytes(pair.server(), 123);
  SEE(ioctl(pair.server(), FIONREAD, &value));
  NOTE(value);
  NOTE(take(pair.server(), 23));
  SEE(ioctl(pair.server(), SIOCINQ, &value));
  NOTE(value);
  pair.close_client();
  await_end(pair.server());
  SEE(ioctl(pair.server(), FIONREAD, &value));
  NOTE(value);
}

CASE(options, bytes_that_are_on_their_way) {
  Pair pair;
  int value = -1;
  SEE(ioctl(pair.client(), SIOCOUTQ, &value));
  NOTE(value);
  give(pair.client(), text(5000));
  NOTE(digest(take(pair.server(), 5000)));
  for (int i = 0; i < 2000 && value != 0; ++i) {
    usleep(1000);
    ioctl(pair.client(), SIOCOUTQ, &value);
  }
  NOTE(value);
}

CASE(options, nonblocking_by_ioctl) {
  Pair pair;
  int on = 1;
  char byte;
  SEE(ioctl(pair.server(), FIONBIO, &on));
  SEE(recv(pair.server(), &byte, 1, 0));
  NOTE((fcntl(pair.server(), F_GETFL, 0) & O_NONBLOCK) != 0);
  on = 0;
  SEE(ioctl(pair.server(), FIONBIO, &on));
  NOTE((fcntl(pair.server(), F_GETFL, 0) & O_NONBLOCK) != 0);
  const Later later(20, [&] { give(pair.client(), "x"); });
  SEE(recv(pair.server(), &byte, 1, 0));
  SEE(ioctl(pair.server(), FIONBIO, nullptr));
  SEE(ioctl(pair.server(), FIONREAD, nullptr));
}

CASE(options, nonblocking_by_fcntl) {
  Pair pair;
  char byte;
  SEE(fcntl(pair.server(), F_SETFL, O_NONBLOCK));
  SEE(recv(pair.server(), &byte, 1, 0));
  SEE(fcntl(pair.server(), F_SETFL, 0));
  const Later later(20, [&] { give(pair.client(), "x"); });
  SEE(recv(pair.server(), &byte, 1, 0));
}

CASE(options, nonblocking_counts_for_duplicates) {
  Pair pair;
  const int copy = dup(pair.server());
  set_nonblocking(copy);
  char byte;
  SEE(recv(pair.server(), &byte, 1, 0));
  close(copy);
}

namespace {

std::atomic<int> g_notices{0};

/// Checks that SIGIO, which `ask` asks for, comes when there is something to read.
template <typename Ask>
void see_notices(const Pair& pair, Ask ask) {
  g_notices = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++g_notices; };
  sigaction(SIGIO, &action, &before);
  SEE(fcntl(pair.server(), F_SETOWN, getpid()));
  ask(pair.server());
  for (int i = 0; i < 3; ++i) {
    g_notices = 0;
    give(pair.client(), "x");
    for (int wait = 0; g_notices == 0 && wait < 2000; ++wait) usleep(1000);
    NOTE(g_notices != 0);
    NOTE(take(pair.server(), 1));
  }
  fcntl(pair.server(), F_SETFL, 0);
  sigaction(SIGIO, &before, nullptr);
}

}  // namespace

CASE(options, notices_by_fcntl) {
  const Pair pair;
  see_notices(pair, [](int fd) { SEE(fcntl(fd, F_SETFL, O_ASYNC)); });
}

CASE(options, notices_by_ioctl) {
  const Pair pair;
  see_notices(pair, [](int fd) {
    int on = 1;
    SEE(ioctl(fd, FIOASYNC, &on));
  });
}

CASE(options, notices_asked_for_before_connect) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  g_notices = 0;
  std::signal(SIGIO, [](int) { ++g_notices; });
  fcntl(client, F_SETOWN, getpid());
  SEE(fcntl(client, F_SETFL, O_ASYNC));
  SEE(connect(client, reinterpret_cast<sockaddr*>(&address), length));
  const int server = accept(listener, nullptr, nullptr);
  for (int i = 0; i < 20; ++i) {
    usleep(1000);  // time to leave the kernel
    g_notices = 0;
    give(server, "x");
    for (int wait = 0; g_notices == 0 && wait < 2000; ++wait) usleep(1000);
    NOTE(g_notices != 0);
    NOTE(take(client, 1));
  }
  close(client);
  close(server);
  close(listener);
  std::signal(SIGIO, SIG_DFL);
}

}  // namespace conformance

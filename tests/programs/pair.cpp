// One end of a checked transfer over the plain sockets API: the low-level peer that the integration
// tests use.
//
//   pair server [options]      accepts --connections and serves them
//   pair client [options]      makes --connections and decides what they carry
//   pair self [options]        both ends in one process
//
// What a connection carries: the client sends a header (magic, seed, number, bytes up, bytes down)
// and its payload; the server sends its payload once it has the header. Every stream ends with its
// length and a half close, so that the receiver can tell a short stream from a complete one. The
// receiver compares every byte with the pattern.
//
// Output: "listening PORT" (server), "streaming" when the first payload byte has arrived, and at
// the end, one line of JSON with the outcome of each direction of each connection:
//   complete   everything arrived, or was sent and half closed
//   reset      ECONNRESET or EPIPE (see "errno")
//   short_eof  the stream ended before its full length had arrived
//   corrupt    a wrong byte, or too many bytes
//   failed     any other error
// "at" is CLOCK_MONOTONIC in seconds. Exit code: 0 all complete, 1 corrupt or failed, 2 usage, 3
// time limit, 4 the peer was lost (reset or short_eof).

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/programs/connection.hpp"
#include "tests/programs/die.hpp"
#include "tests/programs/options.hpp"
#include "tests/programs/waiting.hpp"

using namespace pair;

namespace {

[[noreturn]] void usage() {
  std::fprintf(
      stderr,
      "usage: pair server|client|self [--host ADDRESS] [--port N] [--connections N]\n"
      "  [--threads N] [--bytes N | --bytes-up N --bytes-down N] [--seed N]\n"
      "  [--max-size N] [--timeout SECONDS]\n"
      "  [--mode block|poll|select|epoll-lt|epoll-et|epoll-oneshot]\n"
      "  [--io mixed|read|send|vector|message]\n"
      "--bytes count per connection and direction; --threads share the connections in the\n"
      "modes that wait for events (block has two threads for each connection).\n");
  std::exit(2);
}

template <typename T>
T choice(const std::map<std::string_view, T>& table, std::string_view name) {
  auto it = table.find(name);
  if (it == table.end()) usage();
  return it->second;
}

Options parse(std::span<char*> args) {
  Options o;
  for (size_t i = 0; i + 1 < args.size(); i += 2) {
    const std::string_view key = args[i];
    const char* value = args[i + 1];
    const uint64_t number = std::strtoull(value, nullptr, 10);
    if (key == "--host") {
      o.host = value;
    } else if (key == "--port") {
      o.port = static_cast<uint16_t>(number);
    } else if (key == "--connections") {
      o.connections = static_cast<uint32_t>(number);
    } else if (key == "--threads") {
      o.threads = std::max(1U, static_cast<uint32_t>(number));
    } else if (key == "--bytes") {
      o.bytes_up = o.bytes_down = number;
    } else if (key == "--bytes-up") {
      o.bytes_up = number;
    } else if (key == "--bytes-down") {
      o.bytes_down = number;
    } else if (key == "--seed") {
      o.seed = number;
    } else if (key == "--max-size") {
      o.max_size = std::max<size_t>(1, number);
    } else if (key == "--timeout") {
      o.timeout = static_cast<unsigned>(number);
    } else if (key == "--mode") {
      o.mode = choice<Mode>({{"block", Mode::kBlock},
                             {"poll", Mode::kPoll},
                             {"select", Mode::kSelect},
                             {"epoll-lt", Mode::kEpollLevel},
                             {"epoll-et", Mode::kEpollEdge},
                             {"epoll-oneshot", Mode::kEpollOneshot}},
                            value);
    } else if (key == "--io") {
      o.io = choice<Io>({{"mixed", Io::kMixed},
                         {"read", Io::kRead},
                         {"send", Io::kSend},
                         {"vector", Io::kVector},
                         {"message", Io::kMessage},
                         {"raw", Io::kRaw}},
                        value);
    } else {
      usage();
    }
  }
  if (args.size() % 2 != 0) usage();
  return o;
}

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Address resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) usage();
  Address a;
  a.size = found->ai_addrlen;
  std::memcpy(&a.storage, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return a;
}

int run_listener(const Options& options, uint16_t& port) {
  Address a = resolve(options.host, options.port);
  const int fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd < 0) die("socket");
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, a.get(), a.size) != 0) die("bind");
  if (listen(fd, 1024) != 0) die("listen");
  if (getsockname(fd, a.get(), &a.size) != 0) die("getsockname");
  port =
      ntohs(a.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&a.storage)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&a.storage)->sin_port);
  return fd;
}

Connections accept_all(int listener, const Options& options) {
  Connections connections;
  while (connections.size() < options.connections) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR) continue;
      die("accept4");
    }
    connections.push_back(std::make_unique<Connection>(fd, options, nullptr));
  }
  close(listener);
  return connections;
}

Connections connect_all(uint16_t port, const Options& options) {
  Connections connections;
  Address a = resolve(options.host, port);
  for (uint32_t i = 0; i < options.connections; ++i) {
    const int fd = socket(a.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("socket");
    if (connect(fd, a.get(), a.size) != 0) die("connect");
    const int on = 1;
    if (i % 2 == 1) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const Header header{Header::kMagic, options.seed, i, options.bytes_up, options.bytes_down};
    connections.push_back(std::make_unique<Connection>(fd, options, &header));
  }
  return connections;
}

int report(const char* role, const Connections& connections) {
  Outcome worst = Outcome::kComplete;
  std::string text = std::string("{\"role\": \"") + role + "\", \"connections\": [";
  for (size_t i = 0; i < connections.size(); ++i) {
    if (i > 0) text += ", ";
    text += connections[i]->json();
    worst = std::max(worst, connections[i]->worst());
  }
  std::printf("%s]}\n", text.c_str());
  std::fflush(stdout);
  if (worst == Outcome::kComplete) return 0;
  return worst == Outcome::kCorrupt || worst == Outcome::kFailed ? 1 : 4;
}

void start_watchdog(unsigned seconds) {
  std::thread([seconds] {
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
    std::fprintf(stderr, "pair: time limit of %u s\n", seconds);
    _exit(3);
  }).detach();
}

void join(std::vector<std::thread>& threads) {
  for (std::thread& t : threads) t.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char*> args(argv, static_cast<size_t>(argc));
  if (args.size() < 2) usage();
  const std::string_view role = args[1];
  const Options options = parse(args.subspan(2));
  std::signal(SIGPIPE, SIG_IGN);
  start_watchdog(options.timeout);

  Connections accepted;
  Connections made;
  std::vector<std::thread> threads;
  if (role == "client") {
    made = connect_all(options.port, options);
    start(made, options, threads);
    join(threads);
    return report("client", made);
  }
  if (role != "server" && role != "self") usage();
  uint16_t port = 0;
  const int listener = run_listener(options, port);
  std::printf("listening %u\n", static_cast<unsigned>(port));
  std::fflush(stdout);
  if (role == "self") {
    std::thread connector([&] { made = connect_all(port, options); });
    accepted = accept_all(listener, options);
    connector.join();
    start(made, options, threads);
  } else {
    accepted = accept_all(listener, options);
  }
  start(accepted, options, threads);
  join(threads);
  const int server_code = report("server", accepted);
  return role == "self" ? std::max(server_code, report("client", made)) : server_code;
}

// Connections that are reset and made again between the same two addresses and ports while the
// server still has the old one.
//
//   reconnect server ROUNDS [ADDRESS]        prints "listening PORT", then the outcome
//   reconnect client PORT ROUNDS [ADDRESS]   the server's address; loopback by default
//
// In each round, the client connects from some port, sends a few bytes, resets the connection after
// a number of milliseconds that depends on the round (0 to 40), and connects again from the same
// port. The second connection carries twenty messages, each answered. When the server has served
// the second one, it reads what is left of the first. It prints a line for each byte that is not at
// its own socket and for each end that differs from the kernel's; if there is any, it exits with 1.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"

namespace {

using pair::die;

constexpr int kMessages = 20;
constexpr int kSteps = 41;  // milliseconds: 0 to 40
constexpr size_t kSize = 16;

std::string message_of(int round, int number) {
  std::string text = "round " + std::to_string(round) + "/" + std::to_string(number);
  text.resize(kSize, '.');
  return text;
}

void limit_waiting(int fd) {
  const timeval limit{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

std::string receive(int fd, int flags = MSG_WAITALL) {
  char data[kSize];
  const ssize_t count = recv(fd, data, sizeof data, flags);
  return count >= 0 ? std::string(data, static_cast<size_t>(count)) : strerrorname_np(errno);
}

void transmit(int fd, const std::string& text) {
  if (send(fd, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size()))
    die("send");
}

sockaddr_in parse(const char* address) {
  sockaddr_in parsed = pair::loopback(0);
  if (address != nullptr && inet_pton(AF_INET, address, &parsed.sin_addr) != 1) die("inet_pton");
  return parsed;
}

/// Connects from the port `own` (0: any), and stores the port there.
int connect_from(int& own, const sockaddr_in& server) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(own));
  socklen_t length = sizeof address;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    die("connect");
  own = ntohs(address.sin_port);
  limit_waiting(fd);
  return fd;
}

void reset(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

bool as_expected(const char* who, int round, const std::string& got, const std::string& expected) {
  if (got == expected) return true;
  std::printf("round %d, %s: %s instead of %s\n", round, who, got.c_str(), expected.c_str());
  return false;
}

int serve(int rounds, sockaddr_in own) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof own;
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (bind(listener, address, length) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, address, &length) != 0)
    die("listen");
  std::printf("listening %d\n", ntohs(own.sin_port));
  std::fflush(stdout);
  bool sound = true;
  for (int round = 0; round < rounds; ++round) {
    const int first = accept(listener, nullptr, nullptr);
    const int second = accept(listener, nullptr, nullptr);
    if (first < 0 || second < 0) die("accept");
    limit_waiting(first);
    limit_waiting(second);
    for (int number = 0; number < kMessages; ++number) {
      const std::string got = receive(second);
      sound = as_expected("the live connection", round, got, message_of(round, number)) && sound;
      transmit(second, got);
    }
    for (const char* const expected : {"lost", "ECONNRESET", ""})
      sound = as_expected("the one that was reset", round, receive(first, 0), expected) && sound;
    close(first);
    sound = as_expected("the end of the live one", round, receive(second), "") && sound;
    close(second);
  }
  std::printf("%s\n", sound ? "every byte was at its own socket" : "failed");
  return sound ? 0 : 1;
}

int be_client(int rounds, const sockaddr_in& server) {
  for (int round = 0; round < rounds; ++round) {
    int own = 0;
    const int first = connect_from(own, server);
    transmit(first, "lost");
    std::this_thread::sleep_for(std::chrono::milliseconds(round % kSteps));
    reset(first);
    const int second = connect_from(own, server);
    for (int number = 0; number < kMessages; ++number) {
      transmit(second, message_of(round, number));
      if (!as_expected("client", round, receive(second), message_of(round, number))) return 1;
      // In total long enough for the stream to leave the kernel and be used on the engine.
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    close(second);
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  const std::string role = count > 1 ? words[1] : "";
  if (role == "server" && (count == 3 || count == 4))
    return serve(std::atoi(words[2]), parse(words[3]));  // nullptr follows the last word
  if (role == "client" && (count == 4 || count == 5)) {
    sockaddr_in server = parse(words[4]);
    server.sin_port = htons(static_cast<uint16_t>(std::atoi(words[2])));
    return be_client(std::atoi(words[3]), server);
  }
  std::fputs("usage: reconnect server ROUNDS [ADDRESS] | client PORT ROUNDS [ADDRESS]\n", stderr);
  return 2;
}

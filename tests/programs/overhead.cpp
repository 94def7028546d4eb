// Measures what a call costs on descriptors that never leave the kernel, in nanoseconds, as JSON.
//
//   overhead [SECONDS]
//
// pipe: one byte is written and read back. tcp: 64 bytes are sent from one end to the other within
// this process, which must run with SIDESTEP_ENABLE=0 or a rule so that the stream stays on the
// kernel. peer: 64 bytes are sent to and received from a process that is not under Sidestep. Each
// runs in short rounds, and the fastest round is reported: time that other programs add is not the
// call's.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"

namespace {

using pair::die;
using Clock = std::chrono::steady_clock;
constexpr size_t kMessage = 64;

std::array<int, 2> tcp_pair(bool own_peer, const char* program) {
  int port_number = 0;
  const int listener = pair::listen_on_loopback(1, port_number);
  int client = -1;
  if (own_peer) {
    client = pair::connect_on_loopback(port_number);
  } else if (fork() == 0) {
    const std::string port = std::to_string(port_number);
    char* const arguments[] = {const_cast<char*>(program), const_cast<char*>("echo"),
                               const_cast<char*>(port.c_str()), nullptr};
    char* const environment[] = {nullptr};
    execve(program, arguments, environment);
    _exit(1);
  }
  const int server = accept(listener, nullptr, nullptr);
  if (server < 0) die("accept");
  close(listener);
  const int on = 1;
  setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {client, server};
}

/// Echoes everything until the stream ends.
int echo(const char* port) {
  const int fd = pair::connect_on_loopback(std::atoi(port));
  char data[kMessage];
  ssize_t got = 0;
  while ((got = recv(fd, data, sizeof data, 0)) > 0) send(fd, data, static_cast<size_t>(got), 0);
  return 0;
}

template <typename Work>
double least(double seconds, Work work) {
  constexpr int kRound = 200;
  double best = 1e9;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto start = Clock::now();
    for (int i = 0; i < kRound; ++i) work();
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    best = std::min(best, took.count() / kRound);
  } while (Clock::now() < end);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "echo") == 0) return echo(argv[2]);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  char data[kMessage] = {};
  int pipes[2];
  if (pipe(pipes) != 0) die("pipe");
  const double pipe_time = least(seconds, [&] {
    if (write(pipes[1], data, 1) != 1 || read(pipes[0], data, 1) != 1) die("pipe");
  });
  const auto inside = tcp_pair(true, argv[0]);
  const double tcp_time = least(seconds, [&] {
    if (send(inside[0], data, kMessage, 0) != kMessage ||
        recv(inside[1], data, kMessage, 0) != kMessage)
      die("tcp");
  });
  const auto outside = tcp_pair(false, "/proc/self/exe");
  usleep(50'000);  // by then it is known that the peer has no Sidestep
  const double peer_time = least(seconds, [&] {
    if (send(outside[1], data, kMessage, 0) != kMessage) die("peer");
    for (size_t got = 0; got < kMessage;) {
      const ssize_t n = recv(outside[1], data, kMessage - got, MSG_DONTWAIT);
      if (n > 0) got += static_cast<size_t>(n);
    }
  });
  std::printf("{\"pipe\": %.1f, \"tcp\": %.1f, \"peer\": %.1f}\n", pipe_time, tcp_time, peer_time);
  return 0;
}

// Sends and receives 64 bytes at a time, for a profiler that counts the instructions of both calls.
//
//   counted engine|kernel|untracked PAIRS
//
// One thread holds both ends of a stream and receives what it has just sent, so recv() never waits.
// The stream has to be on the engine, or tracked and on the kernel, or not tracked, both before the
// calls that count and after them. The profiler finds these calls by the names of the functions
// that make them, which are measured_send and measured_recv.
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "preload/sidestep.h"
#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/two_processes.hpp"

#pragma weak sidestep_carriers

namespace {

using pair::die;
constexpr size_t kSize = 64;
constexpr int kWarmPairs = 1000;
char data[kSize];

struct Stream {
  int sender;
  int receiver;
  int wanted;  // what sidestep_carriers() says of both ends

  bool is_there() const {
    return sidestep_carriers(sender) == wanted && sidestep_carriers(receiver) == wanted;
  }
};

/// Sets an option that only the kernel serves, so that the stream stays there.
void keep_on_kernel(int fd) {
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) != 0) die("setsockopt");
}

int wanted_carriers(std::string_view where) {
  if (where == "engine") return SIDESTEP_SENDS_BY_ENGINE | SIDESTEP_RECEIVES_BY_ENGINE;
  return where == "kernel" ? 0 : -1;
}

void pass(int from, int to) {
  if (send(from, data, kSize, 0) != kSize || recv(to, data, kSize, MSG_WAITALL) != kSize)
    die("warming");
}

/// Passes bytes both ways until the stream is where it should be, and some more as it is measured.
void warm(const Stream& stream) {
  for (int i = 0; i < 2000 && !stream.is_there(); ++i) {
    pass(stream.sender, stream.receiver);
    pass(stream.receiver, stream.sender);
    pair::pause_ms(5);
  }
  for (int i = 0; i < kWarmPairs; ++i) pass(stream.sender, stream.receiver);
}

void check(const Stream& stream) {
  if (stream.is_there()) return;
  std::fprintf(stderr, "counted: the carriers are %d and %d\n", sidestep_carriers(stream.sender),
               sidestep_carriers(stream.receiver));
  std::exit(1);
}

}  // namespace

// The comparison keeps the compiler from making a jump of the call.
extern "C" [[gnu::noinline]] bool measured_send(int fd) {
  return send(fd, data, kSize, 0) == kSize;
}
extern "C" [[gnu::noinline]] bool measured_recv(int fd) {
  return recv(fd, data, kSize, 0) == kSize;
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: counted engine|kernel|untracked PAIRS\n");
    return 2;
  }
  if (sidestep_carriers == nullptr) die("the library is not loaded");
  int port = 0;
  const int listener = pair::listen_on_loopback(1, port);
  const int sender = pair::connect_on_loopback(port);
  const int receiver = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (receiver < 0) die("accept4");
  const Stream stream{sender, receiver, wanted_carriers(argv[1])};
  if (stream.wanted == 0) {
    keep_on_kernel(sender);
    keep_on_kernel(receiver);
  }
  warm(stream);
  check(stream);
  for (int i = 0; i < std::atoi(argv[2]); ++i)
    if (!measured_send(sender) || !measured_recv(receiver)) die("a measured call");
  check(stream);
  return 0;
}

// SO_SNDBUF and SO_RCVBUF limit how much a stream takes while nobody reads it.
#include <poll.h>
#include <sys/socket.h>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

constexpr size_t kLittle = 4096;
constexpr size_t kMuch = 200'000;

void set_size(int fd, int name, size_t size) {
  const int value = static_cast<int>(size);
  SEE(setsockopt(fd, SOL_SOCKET, name, &value, sizeof value));
}

/// True if the kernel would take no more with such buffers. It takes more than their sizes say, but
/// not much more.
bool is_little(size_t bytes) {
  return bytes != 0 && bytes < kMuch;
}

bool writable(int fd, int milliseconds) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, milliseconds) == 1 && entry.revents == POLLOUT;
}

}  // namespace

CASE(buffers, small_ones_take_little) {
  Pair pair(true);
  set_size(pair.client(), SO_SNDBUF, kLittle);
  set_size(pair.server(), SO_RCVBUF, kLittle);
  const size_t taken = fill(pair);
  NOTE(is_little(taken));
  // All bytes that the stream took are there.
  NOTE(take(pair.server(), taken).size() == taken);
  NOTE(writable(pair.client(), 5000));
  give(pair.client(), "more");
  NOTE(take(pair.server(), 4));
}

CASE(buffers, they_become_small_while_bytes_are_unread) {
  Pair pair(true);
  give(pair.client(), text(30'000));
  await_bytes(pair.server(), 30'000);
  set_size(pair.client(), SO_SNDBUF, kLittle);
  set_size(pair.server(), SO_RCVBUF, kLittle);
  const size_t taken = fill(pair);
  NOTE(taken < kMuch);
  NOTE(digest(take(pair.server(), 30'000)) == digest(text(30'000)));
  NOTE(take(pair.server(), taken).size() == taken);
  NOTE(writable(pair.client(), 5000));
}

CASE(buffers, a_sender_wakes_when_its_buffer_grows) {
  Pair pair(true);
  set_size(pair.client(), SO_SNDBUF, kLittle);
  set_size(pair.server(), SO_RCVBUF, kLittle);
  const size_t taken = fill(pair);
  set_nonblocking(pair.client(), false);
  {
    const Later later(30, [&] {
      const int value = kMuch;
      setsockopt(pair.client(), SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
    });
    SEE(send(pair.client(), "behind", 6, 0));
  }
  NOTE(take(pair.server(), taken).size() == taken);
  NOTE(take(pair.server(), 6));
}

CASE(buffers, a_poll_wakes_when_the_buffer_grows) {
  Pair pair(true);
  set_size(pair.client(), SO_SNDBUF, kLittle);
  set_size(pair.server(), SO_RCVBUF, kLittle);
  const size_t taken = fill(pair);
  NOTE(writable(pair.client(), 20));
  {
    const Later later(30, [&] {
      const int value = kMuch;
      setsockopt(pair.client(), SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
    });
    NOTE(writable(pair.client(), 10'000));
  }
  NOTE(take(pair.server(), taken).size() == taken);
}

CASE(buffers, a_transfer_through_small_ones) {
  Pair pair;
  set_size(pair.client(), SO_SNDBUF, kLittle);
  set_size(pair.server(), SO_RCVBUF, kLittle);
  const std::string data = text(300'000);
  const Later sends(0, [&] { give(pair.client(), data); });
  NOTE(take(pair.server(), data.size()) == data);
}

}  // namespace conformance

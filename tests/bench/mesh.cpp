#include "tests/bench/mesh.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/clock.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {
namespace {

using engine::Carrier;
using engine::Phase;

/// The first bytes on a connection. They travel by the kernel; the stream leaves it after them.
struct Hello {
  uint32_t magic;
  uint16_t node;
  uint16_t number;
};
static_assert(sizeof(Hello) == 8);
constexpr uint32_t kMagic = 0x42454453;
constexpr int kAcceptTimeout = 5000;  // milliseconds

[[noreturn]] void fail(const char* call) {
  throw Failure(fmt::format("{}: {}", call, strerror(errno)));
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

engine::Tuple tuple_of(int fd) {
  sockaddr_in own{};
  sockaddr_in peer{};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) < 0) fail("getsockname");
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) < 0) fail("getpeername");
  return {*engine::to_address(reinterpret_cast<sockaddr*>(&own)),
          *engine::to_address(reinterpret_cast<sockaddr*>(&peer))};
}

void set_no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool is_on_engine(engine::Stream& stream) {
  // A reader crosses the switch by looking at the head.
  stream.receiver().mutex().lock();
  stream.receiver().head_locked();
  stream.receiver().unlock();
  return stream.sender().carrier() == Carrier::engine &&
         stream.receiver().carrier() == Carrier::engine;
}

}  // namespace

Mesh::Mesh(const Options& options, unsigned self, engine::Node& node)
    : options_(options), self_(self), node_(node) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener_ < 0) fail("socket");
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), length) < 0) fail("bind");
  if (listen(listener_, 1024) < 0) fail("listen");
  if (getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length) < 0)
    fail("getsockname");
  port_ = ntohs(address.sin_port);
}

Mesh::~Mesh() {
  if (listener_ >= 0) ::close(listener_);
}

void Mesh::join(const std::vector<int>& ports) {
  size_t to_accept = 0;
  for (unsigned peer = 0; peer < options_.nodes; ++peer) {
    if (!are_joined(options_, self_, peer)) continue;
    for (unsigned number = 0; number < options_.streams; ++number) {
      if (peer < self_) {
        connect_to(peer, number, ports.at(peer));
      } else {
        ++to_accept;
      }
    }
  }
  while (to_accept-- != 0) accept_one();
  ::close(listener_);
  listener_ = -1;
  std::sort(joints_.begin(), joints_.end(), [](const Joint& one, const Joint& other) {
    return one.peer != other.peer ? one.peer < other.peer : one.number < other.number;
  });
}

void Mesh::connect_to(unsigned peer, unsigned number, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  const sockaddr_in address = loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) < 0) fail("connect");
  set_no_delay(fd);
  engine::Stream* stream = node_.open_stream(tuple_of(fd), fd, false);
  if (stream == nullptr) throw Failure("the engine has no room for a stream");
  // The other end asks for the stream only after it has read this, so it will find the stream.
  const Hello hello{kMagic, static_cast<uint16_t>(self_), static_cast<uint16_t>(number)};
  stream->sender().mutex().lock();
  const bool sent = send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
  if (sent) stream->sender().count_kernel(sizeof hello);
  stream->sender().unlock();
  if (!sent) fail("send");
  joints_.push_back({peer, number, fd, stream});
}

void Mesh::accept_one() {
  pollfd ready{listener_, POLLIN, 0};
  if (poll(&ready, 1, kAcceptTimeout) != 1) throw Failure("another node does not connect");
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) fail("accept");
  set_no_delay(fd);
  const timeval limit{2, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Hello hello{};
  if (recv(fd, &hello, sizeof hello, MSG_WAITALL) != sizeof hello || hello.magic != kMagic)
    throw Failure("something else than a node has connected");
  engine::Stream* stream = node_.open_stream(tuple_of(fd), fd, true);
  if (stream == nullptr) throw Failure("the engine has no room for a stream");
  stream->receiver().mutex().lock();
  stream->receiver().count_kernel(sizeof hello);
  stream->receiver().unlock();
  node_.streams().ask_for_owner(*stream);
  joints_.push_back({hello.node, hello.number, fd, stream});
}

void Mesh::wait_for_engine(double seconds) {
  const uint64_t limit = engine::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (const Joint& joint : joints_) {
    while (!is_on_engine(*joint.stream)) {
      const bool late = engine::now_ns() >= limit;
      if (late || joint.stream->is_aborted() || joint.stream->phase() == Phase::kernel) {
        const engine::Reason reason = joint.stream->reason();
        throw Failure(fmt::format(
            "stream {} to node {} is not on the engine after {} s: {}", joint.number, joint.peer,
            seconds,
            reason != engine::Reason::none ? engine::text_of(reason) : "the switch does not come"));
      }
      if (!node_.progress().poll()) usleep(200);
    }
  }
}

void Mesh::finish(double seconds) {
  const uint64_t limit = engine::now_ns() + static_cast<uint64_t>(seconds * 1e9);
  for (const Joint& joint : joints_) {
    joint.stream->sender().mutex().lock();
    joint.stream->sender().finish_locked();
    joint.stream->sender().unlock();
  }
  for (const Joint& joint : joints_) {
    while (!joint.stream->sender().has_told_end() ||
           !joint.stream->receiver().peer_has_finished()) {
      if (engine::now_ns() >= limit)
        throw Failure(fmt::format("stream {} to node {} does not end", joint.number, joint.peer));
      if (!node_.progress().poll()) usleep(200);
    }
  }
}

void Mesh::close() {
  for (const Joint& joint : joints_) {
    node_.streams().close(*joint.stream, -1);
    ::close(joint.anchor);
  }
  joints_.clear();
  node_.progress().poll();  // frees the streams
}

}  // namespace sidestep::bench

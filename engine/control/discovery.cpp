#include "engine/control/discovery.hpp"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "engine/base/datagram.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

// One socket serves both families; IPv4 uses mapped addresses. A kernel without IPv6 has no
// discovery.
int open_socket(uint16_t port, bool shared) noexcept {
  const int fd =
      private_fd_adopt(sys::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return fd;
  const int off = 0;
  const int on = 1;
  sys::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (shared) sys::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  const int result = sys::bind(fd, &address, sizeof address);
  if (result == 0) return fd;
  private_fd_close(fd);
  return result;
}

}  // namespace

void Discovery::open(bool asks) noexcept {
  if (!key_.lets_talk()) return;
  if (asks && asking_ < 0) {
    asking_ = open_socket(0, false);
    if (asking_ < 0)
      log(LogLevel::info, "discovery: other hosts cannot be asked, for want of a UDP socket: %s",
          std::strerror(-asking_));
  }
  if (answering_ < 0 && !take_over())
    log(LogLevel::info, "discovery: port %u is in use, so this node does not answer other hosts",
        port_);
}

bool Discovery::take_over() noexcept {
  if (answering_ >= 0 || !key_.lets_talk()) return false;
  answering_ = open_socket(port_, true);
  return answering_ >= 0;
}

void Discovery::close() noexcept {
  for (int* const fd : {&answering_, &asking_}) {
    private_fd_close(*fd);
    *fd = -1;
  }
}

bool Discovery::ask(const Address& host, const Ip& own, const DiscoveryMessage& message,
                    unsigned tries) noexcept {
  const int fd = (tries % 2 == 0 && answering_ >= 0) || asking_ < 0 ? answering_ : asking_;
  if (fd < 0) return false;
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(port_);
  std::memcpy(&to.sin6_addr, host.ip.data(), host.ip.size());
  return send(fd, to, own, message);
}

void Discovery::answer(const sockaddr_in6& to, const Ip& own,
                       const DiscoveryMessage& message) noexcept {
  const int fd = answering_ >= 0 ? answering_ : asking_;
  if (fd >= 0) send(fd, to, own, message);
}

bool Discovery::send(int fd, const sockaddr_in6& to, const Ip& own,
                     DiscoveryMessage message) const noexcept {
  key_.sign(message);
  if (own == Ip{})
    return sys::sendto(fd, &message, sizeof message, MSG_NOSIGNAL, &to, sizeof to) >= 0;
  if (send_datagram_from(fd, own, to, &message, sizeof message) >= 0) return true;
  // This host no longer has that address; it may have been a temporary IPv6 address. The peer may
  // still listen to what the message says about other streams.
  return send(fd, to, {}, message);
}

bool Discovery::parse(const void* data, size_t size, DiscoveryMessage& message) noexcept {
  if (size != sizeof message) return false;
  std::memcpy(&message, data, sizeof message);
  const DiscoveryHeader& header = message.header;
  if (header.magic != DiscoveryHeader::kMagic || header.version != kProtocolVersion ||
      datagram::Payloads::size_of(header.type) == datagram::Payloads::kUnknown || header.from == 0)
    return false;
  if (message.type() == DiscoveryType::owner)
    return message.as<datagram::Owner>().answer <= static_cast<uint32_t>(OwnerAnswer::later);
  if (message.type() == DiscoveryType::failed)
    return message.as<datagram::Failed>().count <= datagram::Failed::kMost;
  return true;
}

bool Discovery::admit(const void* data, size_t size, const sockaddr_in6& from,
                      DiscoveryMessage& message) {
  if (!parse(data, size, message)) return false;
  if (key_.verify(message)) return true;
  refused_.add();
  if (told_of_refusal_ || !log_enabled(LogLevel::info)) return false;
  told_of_refusal_ = true;
  Address host;
  std::memcpy(host.ip.data(), &from.sin6_addr, host.ip.size());
  log(LogLevel::info,
      "discovery: a datagram from %s was refused: %s. Further ones are only counted "
      "(datagrams_refused)",
      ip_text(host).c_str(),
      key_.state() != ClusterKey::State::usable ? "it has a key, and this process none it can use"
      : message.mac == Digest{}
          ? "it has no key, and this process has one (SIDESTEP_KEY_FILE)"
          : "it was made with another key (SIDESTEP_KEY_FILE), or changed on its way");
  return false;
}

bool Discovery::receive(int fd, DiscoveryMessage& message, sockaddr_in6& from) {
  constexpr int kMost = 256;
  for (int i = 0; i < kMost; ++i) {
    unsigned char data[sizeof message + 1];  // one more: a longer datagram must not look right
    socklen_t length = sizeof from;
    const long size = sys::recvfrom(fd, data, sizeof data, MSG_DONTWAIT, &from, &length);
    // ECONNREFUSED reports that an earlier question went to a host without a responder; the next
    // call goes on.
    if (size == -ECONNREFUSED || size == -EINTR) continue;
    if (size < 0) return false;
    if (length == sizeof from && admit(data, static_cast<size_t>(size), from, message)) return true;
  }
  return false;
}

}  // namespace sidestep::engine

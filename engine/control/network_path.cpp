#include "engine/control/network_path.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "engine/base/datagram.hpp"
#include "engine/base/random.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {

int NetworkPaths::open() noexcept {
  if (socket_.get() >= 0) return socket_.get();
  // Serves both families; IPv4 uses mapped addresses.
  PrivateFd fd(
      private_fd_adopt(sys::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  const int off = 0;
  const int on = 1;
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t length = sizeof address;
  sys::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (fd.get() < 0 ||
      sys::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof on) != 0 ||
      sys::bind(fd.get(), &address, sizeof address) != 0 ||
      sys::getsockname(fd.get(), &address, &length) != 0)
    return -1;
  port_ = ntohs(address.sin6_port);
  socket_ = std::move(fd);
  return socket_.get();
}

void NetworkPaths::put(std::map<uint64_t, Probe>& into, uint64_t number, const Probe& path) {
  std::erase_if(into, [&path](const auto& entry) { return entry.second == path; });
  if (into.size() < kMost) into[number] = path;
}

void NetworkPaths::probe(const Probe& path, uint16_t port, uint16_t own_nid) {
  if (open() < 0) return;
  PathDatagram datagram;
  datagram.number = random_number();
  datagram.nid = own_nid;
  put(sent_, datagram.number, path);
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(port);
  std::memcpy(&to.sin6_addr, path.other.data(), path.other.size());
  // If the datagram is lost, a new one is sent when the peer asks again.
  send_datagram_from(socket_.get(), path.own, to, &datagram, sizeof datagram);
}

bool NetworkPaths::parse(const void* data, size_t size, PathDatagram& datagram) noexcept {
  if (size != sizeof datagram) return false;
  std::memcpy(&datagram, data, sizeof datagram);
  return datagram.magic == PathDatagram::kMagic && datagram.version == kProtocolVersion &&
         datagram.nid != 0;
}

std::optional<NetworkPaths::Probe> NetworkPaths::receive(uint64_t& number) {
  constexpr int kMostAtATime = 64;
  for (int i = 0; i < kMostAtATime; ++i) {
    unsigned char data[sizeof(PathDatagram) + 1];  // one more: a longer one must not look right
    iovec part{data, sizeof data};
    sockaddr_in6 from{};
    alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(in6_pktinfo))]{};
    msghdr header{};
    header.msg_name = &from;
    header.msg_namelen = sizeof from;
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const long size = sys::recvmsg(socket_.get(), &header, MSG_DONTWAIT);
    if (size == -EINTR || size == -ECONNREFUSED) continue;
    if (size < 0) return std::nullopt;
    PathDatagram datagram;
    const cmsghdr* const info = CMSG_FIRSTHDR(&header);
    if (!parse(data, static_cast<size_t>(size), datagram) || header.msg_namelen != sizeof from ||
        info == nullptr || info->cmsg_level != IPPROTO_IPV6 || info->cmsg_type != IPV6_PKTINFO)
      continue;
    in6_pktinfo there{};
    std::memcpy(&there, CMSG_DATA(info), sizeof there);
    Probe probe;
    probe.nid = datagram.nid;
    std::memcpy(probe.own.data(), &there.ipi6_addr, probe.own.size());
    std::memcpy(probe.other.data(), &from.sin6_addr, probe.other.size());
    number = datagram.number;
    return probe;
  }
  return std::nullopt;
}

bool NetworkPaths::take(std::map<uint64_t, Probe>& from, uint64_t number, const Probe& path) {
  const auto found = from.find(number);
  if (found == from.end() || found->second != path) return false;
  from.erase(found);
  proven_.insert(key_of(path));
  return true;
}

bool NetworkPaths::confirm(uint64_t number, const Probe& path) {
  return take(sent_, number, path);
}

void NetworkPaths::expect(uint64_t number, const Probe& path) {
  put(expected_, number, path);
}

bool NetworkPaths::accept(uint64_t number, const Probe& path) {
  return take(expected_, number, path);
}

void NetworkPaths::forget(uint16_t nid) {
  const auto is_its = [nid](const auto& entry) { return entry.second.nid == nid; };
  std::erase_if(sent_, is_its);
  std::erase_if(expected_, is_its);
  std::erase_if(proven_, [nid](const Key& key) { return std::get<0>(key) == nid; });
}

}  // namespace sidestep::engine

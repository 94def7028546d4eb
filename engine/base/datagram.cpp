#include "engine/base/datagram.hpp"

#include <cstring>

#include "engine/base/sys.hpp"

namespace sidestep::engine {

long send_datagram_from(int fd, const std::array<uint8_t, 16>& own, const sockaddr_in6& to,
                        void* data, size_t size) noexcept {
  sockaddr_in6 name = to;
  iovec part{data, size};
  in6_pktinfo source{};
  std::memcpy(&source.ipi6_addr, own.data(), own.size());
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof source)]{};
  msghdr header{};
  header.msg_name = &name;
  header.msg_namelen = sizeof name;
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* const info = CMSG_FIRSTHDR(&header);
  info->cmsg_level = IPPROTO_IPV6;  // for a mapped address, too
  info->cmsg_type = IPV6_PKTINFO;
  info->cmsg_len = CMSG_LEN(sizeof source);
  std::memcpy(CMSG_DATA(info), &source, sizeof source);
  return sys::sendmsg(fd, &header, MSG_NOSIGNAL);
}

}  // namespace sidestep::engine

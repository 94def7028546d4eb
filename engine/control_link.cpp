#include "engine/control_link.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/private_fd.hpp"
#include "engine/sys.hpp"

namespace sidestep::engine {
namespace {
/// sun_path[0] stays 0: an abstract name, which needs no file and ends with its process.
template <typename... Numbers>
socklen_t name_of(sockaddr_un& address, const char* format, Numbers... numbers) noexcept {
  std::memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  const int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, format,
                                   unsigned{kProtocolVersion}, numbers...);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
}
}  // namespace

socklen_t node_address(uint16_t nid, sockaddr_un& address) noexcept {
  return name_of(address, "sidestep.%u.%u", unsigned{nid});
}

socklen_t directory_address(uid_t user, unsigned seat, sockaddr_un& address) noexcept {
  return name_of(address, "sidestep.%u.directory.%u.%u", user, seat);
}

std::optional<std::vector<uint16_t>> list_node_names() {
  const int fd = sys::open("/proc/net/unix", O_RDONLY | O_CLOEXEC);
  if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM) return std::nullopt;
  if (fd < 0) return std::vector<uint16_t>();
  std::string text;
  char buffer[16384];
  for (long n; (n = sys::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(n));
  sys::close(fd);
  return parse_node_names(text);
}

std::vector<uint16_t> parse_node_names(const std::string& text) {
  std::vector<uint16_t> nids;
  char prefix[64];
  std::snprintf(prefix, sizeof prefix, " @sidestep.%u.", unsigned{kProtocolVersion});
  const size_t skip = std::strlen(prefix);
  for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
    const char* digits = text.c_str() + at + skip;
    char* end = nullptr;
    const unsigned long nid = std::strtoul(digits, &end, 10);
    if (end != digits && (*end == '\n' || *end == '\0') && nid >= 1 && nid <= 0xffff)
      nids.push_back(static_cast<uint16_t>(nid));
  }
  // Accepted sockets carry the listener's name too.
  std::sort(nids.begin(), nids.end());
  nids.erase(std::unique(nids.begin(), nids.end()), nids.end());
  return nids;
}

namespace {
int new_link() noexcept {
  return private_fd_adopt(sys::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int listen_at(const sockaddr_un& address, socklen_t length) noexcept {
  const int fd = new_link();
  if (fd < 0) return fd;
  int result = sys::bind(fd, &address, length);
  if (result == 0) result = sys::listen(fd, 4096);
  if (result == 0) return fd;
  private_fd_close(fd);
  return result;
}

int open_link_at(const sockaddr_un& address, socklen_t length) noexcept {
  const int fd = new_link();
  if (fd < 0) return fd;
  const int result = sys::connect(fd, &address, length);
  if (result == 0) return fd;
  private_fd_close(fd);
  return result;
}
}  // namespace

int listen_as(uint16_t nid) noexcept {
  sockaddr_un address;
  const socklen_t length = node_address(nid, address);
  return listen_at(address, length);
}

int listen_for_directory(unsigned seat) noexcept {
  sockaddr_un address;
  const socklen_t length = directory_address(getuid(), seat, address);
  return listen_at(address, length);
}

int open_link(uint16_t nid) noexcept {
  sockaddr_un address;
  const socklen_t length = node_address(nid, address);
  return open_link_at(address, length);
}

int open_link_to_directory(uid_t user, unsigned seat) noexcept {
  sockaddr_un address;
  const socklen_t length = directory_address(user, seat, address);
  return open_link_at(address, length);
}

LinkPeer peer_of(int link, const config::Trust& trust) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (sys::getsockopt(link, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return {};
  LinkPeer peer{credentials.pid, credentials.uid, credentials.uid == getuid()};
  if (peer.is_own) return peer;
  gid_t groups[257] = {credentials.gid};  // of a process with more, only this one counts
  size_t count = 1;
  if (!trust.trusts_nobody()) {
    length = sizeof groups - sizeof groups[0];
    if (sys::getsockopt(link, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &length) == 0)
      count += length / sizeof groups[0];
  }
  if (!trust.trusts(credentials.uid, {groups, count})) peer.pid = -1;
  return peer;
}

int send_message(int link, const ControlMessage& message, int fd0, int fd1) noexcept {
  ControlMessage copy = message;
  iovec part{&copy, sizeof copy};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  int fds[2];
  size_t count = 0;
  if (fd0 >= 0) fds[count++] = fd0;
  if (fd1 >= 0) fds[count++] = fd1;
  if (count != 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds, count * sizeof(int));
  }
  const long result = sys::sendmsg(link, &header, MSG_NOSIGNAL);
  return result < 0 ? static_cast<int>(result) : 0;
}

void Received::close_fds() noexcept {
  for (int& fd : fds) {
    if (fd >= 0) sys::close(fd);
    fd = -1;
  }
}

int receive_message(int link, Received& received) noexcept {
  received.fds[0] = received.fds[1] = -1;
  iovec part{&received.message, sizeof received.message};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const long result = sys::recvmsg(link, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (result < 0) return result == -ECONNRESET ? 0 : static_cast<int>(result);
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = std::min<size_t>((item->cmsg_len - CMSG_LEN(0)) / sizeof(int), 2);
    std::memcpy(received.fds, CMSG_DATA(item), count * sizeof(int));
  }
  if (result == 0) {
    received.close_fds();
    return 0;
  }
  const ControlMessage& message = received.message;
  if (result != sizeof message || message.magic != ControlMessage::kMagic ||
      message.version != kProtocolVersion || (header.msg_flags & MSG_TRUNC) != 0 ||
      ((header.msg_flags & MSG_CTRUNC) != 0 && received.fds[1] >= 0)) {  // more than two came
    received.close_fds();
    return -EPROTO;
  }
  // No descriptor was free for one that came: the message is read as one that came without.
  if ((header.msg_flags & MSG_CTRUNC) != 0) received.close_fds();
  return 1;
}

}  // namespace sidestep::engine

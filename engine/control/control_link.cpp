#include "engine/control/control_link.hpp"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "config/text.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {

namespace {

/// True if `user` stands for one user only. Two users that this namespace does not know are not the
/// same, although they look the same.
bool tells_users_apart(uid_t user) noexcept {
  if (user != kNobodys) return true;
  static std::atomic<int> known{0};  // 1: yes, 2: no; relaxed: no other data goes with it
  int state = known.load(std::memory_order_relaxed);
  if (state == 0) {
    char text[256];
    const int fd = sys::open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
    const long size = fd >= 0 ? sys::read(fd, text, sizeof text) : -1;
    if (fd >= 0) sys::close(fd);
    if (size < 0) return false;
    state = maps_all_users({text, static_cast<size_t>(size)}) ? 1 : 2;
    known.store(state, std::memory_order_relaxed);
  }
  return state == 1;
}

}  // namespace

bool maps_all_users(std::string_view map) noexcept {
  // "inside outside count", with blanks before each.
  uint64_t numbers[3] = {};
  size_t at = 0;
  for (uint64_t& number : numbers) {
    at = map.find_first_not_of(" \t", at);
    if (at == std::string_view::npos) return false;
    const size_t end = std::min(map.find_first_of(" \t\n", at), map.size());
    const auto parsed = config::text::parse_number(map.substr(at, end - at));
    if (!parsed) return false;
    number = *parsed;
    at = end;
  }
  return numbers[0] == 0 && numbers[2] == 0xffff'ffff;
}

LinkPeer peer_of(int link, const config::Trust& trust) noexcept {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (sys::getsockopt(link, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0) return {};
  const bool is_known = tells_users_apart(credentials.uid);
  LinkPeer peer{credentials.pid, credentials.uid, is_known && credentials.uid == getuid()};
  if (peer.is_own) return peer;
  if (!is_known) {
    peer.pid = -1;
    return peer;
  }
  gid_t groups[257] = {credentials.gid};  // if a process has more, only this one counts
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
  iovec part{&copy, ControlMessage::size_of(message.header.type)};
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
  const ControlHeader& start = received.message.header;
  if (result < static_cast<long>(sizeof start) || start.magic != ControlHeader::kMagic ||
      start.version != kProtocolVersion ||
      static_cast<size_t>(result) != ControlMessage::size_of(start.type) ||
      (header.msg_flags & MSG_TRUNC) != 0 ||
      ((header.msg_flags & MSG_CTRUNC) != 0 && received.fds[1] >= 0)) {  // more than two came
    received.close_fds();
    return -EPROTO;
  }
  // No descriptor was free for one that came: the message is treated as if it came without any.
  if ((header.msg_flags & MSG_CTRUNC) != 0) received.close_fds();
  return 1;
}

}  // namespace sidestep::engine

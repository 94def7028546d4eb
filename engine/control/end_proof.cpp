#include "engine/control/end_proof.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "engine/base/sys.hpp"
#include "engine/base/tcp_counts.hpp"

namespace sidestep::engine {
namespace {

bool is_mapped(const Address& address) noexcept {
  constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(address.ip.data(), kPrefix, sizeof kPrefix) == 0;
}

void copy_ip(const Address& address, bool v4, __be32 (&to)[4]) noexcept {
  if (v4) {
    std::memcpy(to, address.ip.data() + 12, 4);
  } else {
    std::memcpy(to, address.ip.data(), 16);
  }
}

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

inet_diag_req_v2 request_for(const Tuple& tuple, int interface) noexcept {
  // The kernel also finds an AF_INET6 socket with mapped addresses as an AF_INET one.
  const bool v4 = is_mapped(tuple.local) && is_mapped(tuple.remote);
  inet_diag_req_v2 request{};
  request.sdiag_family = v4 ? AF_INET : AF_INET6;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = htons(tuple.local.port);
  request.id.idiag_dport = htons(tuple.remote.port);
  copy_ip(tuple.local, v4, request.id.idiag_src);
  copy_ip(tuple.remote, v4, request.id.idiag_dst);
  request.id.idiag_if = static_cast<__u32>(interface);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return request;
}

bool is_socket_with(int fd, uint64_t inode) noexcept {
  struct stat status {};
  return sys::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode) && status.st_ino == inode;
}

bool is_link_to(const char* path, uint64_t inode) noexcept {
  char expected[48];
  std::array<char, 64> found;
  std::snprintf(expected, sizeof expected, "socket:[%llu]", static_cast<unsigned long long>(inode));
  const long length =
      sys::call(SYS_readlinkat, -100 /* AT_FDCWD */, path, found.data(), found.size());
  return length > 0 &&
         std::string_view(found.data(), static_cast<size_t>(length)) == std::string_view(expected);
}

/// True if the holder's descriptor table says that it has this socket.
bool has_at(const EndHolder& holder, uint64_t inode) noexcept {
  char path[96];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", holder.pid, holder.fd);
  if (is_link_to(path, inode)) return true;
  // If the main thread of a process has ended, its descriptors are visible through another of its
  // threads. The process tells the number that this thread has in its own pid namespace.
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/fd/%d", holder.pid, holder.thread, holder.fd);
  return is_link_to(path, inode);
}

int interface_of(int fd) noexcept {
  int index = 0;
  socklen_t size = sizeof index;
  return sys::getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &index, &size) == 0 ? index : 0;
}

}  // namespace

KernelEnds::KernelEnds() noexcept
    : socket_(private_fd_adopt(
          sys::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG))) {}

std::optional<KernelEnd> KernelEnds::find(const Tuple& tuple, int interface) noexcept {
  Request request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_seq = ++last_question_;
  request.body = request_for(tuple, interface);
  if (sys::sendto(socket_.get(), &request, sizeof request, 0, nullptr, 0) < 0) return std::nullopt;
  constexpr int kMost = 64;  // messages that are not the answer
  for (int i = 0; i < kMost; ++i) {
    // The answer is there as soon as the kernel has taken the question.
    std::array<char, 1024> answer;
    sockaddr_nl from{};
    socklen_t from_length = sizeof from;
    const long length = sys::recvfrom(socket_.get(), answer.data(), answer.size(), MSG_DONTWAIT,
                                      &from, &from_length);
    if (length < 0) return std::nullopt;
    // Any process with CAP_NET_ADMIN can send to any netlink socket. The kernel is 0.
    if (from.nl_pid != 0 || length < NLMSG_HDRLEN) continue;
    nlmsghdr header;
    std::memcpy(&header, answer.data(), sizeof header);
    if (header.nlmsg_seq != last_question_) continue;
    if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
        length < static_cast<long>(NLMSG_LENGTH(sizeof(inet_diag_msg))))
      return std::nullopt;
    inet_diag_msg found;
    std::memcpy(&found, answer.data() + NLMSG_HDRLEN, sizeof found);
    // The kernel also reports a socket that only listens on the port.
    if (found.id.idiag_dport != request.body.id.idiag_dport ||
        found.id.idiag_sport != request.body.id.idiag_sport)
      return std::nullopt;
    return KernelEnd{found.idiag_inode, found.idiag_uid, static_cast<TcpState>(found.idiag_state)};
  }
  return std::nullopt;
}

bool KernelEnds::has(const Tuple& tuple, int own) noexcept {
  const auto here = find(tuple, interface_of(own));
  return here && is_open(here->state) && is_socket_with(own, here->inode);
}

EndProof KernelEnds::look(const EndHolder& holder, const Tuple& tuple, int own) noexcept {
  if (socket_.get() == -EMFILE || socket_.get() == -ENFILE || socket_.get() == -ENOMEM)
    return EndProof::not_now;
  if (holder.pid < 0 || own < 0) return EndProof::not_shown;
  const int interface = interface_of(own);
  // Another namespace or interface may have a connection with the same addresses and ports. If the
  // kernel does not find this end under its own addresses, what it finds under the other's is not
  // the other end.
  if (!has(tuple.mirrored(), own)) return EndProof::not_shown;
  const auto there = find(tuple, interface);
  if (!there || !is_open(there->state) || there->inode == 0) return EndProof::not_shown;
  // A process of another user, or of another pid namespace, can't be inspected, so it shows what it
  // has. What a process of another user shows counts only if the kernel says that the socket
  // belongs to that user.
  const bool is_seen = holder.is_own && holder.pid != 0;
  const bool holds = is_seen ? has_at(holder, there->inode)
                             : is_socket_with(holder.token, there->inode) &&
                                   (holder.is_own || there->uid == holder.uid);
  return holds ? EndProof::shown : EndProof::not_shown;
}

EndCounts counts_of(int fd, bool accepted) noexcept {
  const auto counts = tcp_counts(fd);
  if (!counts) return {};
  // The connecting end has its SYN acknowledged as well, which nobody receives as a byte.
  const uint64_t syn = accepted || counts->acked == 0 ? 0 : 1;
  return {counts->received, counts->acked - syn};
}

bool may_fit(const EndCounts& other, int fd) noexcept {
  const auto own = tcp_counts(fd);
  return !own || (other.received <= own->sent && other.acked <= own->received);
}

int end_token(int fd) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/thread-self/fd/%d", fd);
  return sys::open(path, O_PATH | O_CLOEXEC);
}

}  // namespace sidestep::engine

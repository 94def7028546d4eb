#include "engine/manager/links.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

Link& Links::add(int fd, uint16_t nid, const LinkPeer& peer) {
  Link& link = links_[fd];
  link.fd = fd;
  link.nid = nid;
  link.pid = peer.pid;
  link.uid = peer.uid;
  link.is_own = peer.is_own;
  watch(link, EPOLL_CTL_ADD);
  return link;
}

void Links::accept(int listen_fd, bool is_for_directory) {
  if (listen_fd < 0) return;
  for (;;) {
    const int fd =
        private_fd_adopt(sys::accept4(listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd == -ECONNABORTED || fd == -EINTR) continue;
    if (fd < 0) {
      // The link stays in the listener's queue, and nothing would report it again.
      if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS)
        accept_at_ = now_ns() + 100'000'000;
      return;
    }
    const LinkPeer peer = peer_of(fd, node_.trust);
    if (peer.pid < 0) {
      log(LogLevel::info, "a process of user %u was refused (SIDESTEP_TRUST)", peer.uid);
      private_fd_close(fd);
      continue;
    }
    if (has_many(peer.pid)) {
      log(LogLevel::info, "another link of process %d was refused: it has many", peer.pid);
      private_fd_close(fd);
      continue;
    }
    add(fd, 0, peer).is_for_directory = is_for_directory;
  }
}

bool Links::takes_up_accepting(uint64_t now) noexcept {
  if (accept_at_ == 0 || accept_at_ > now) return false;
  accept_at_ = 0;
  return true;
}

void Links::stop_listening() noexcept {
  if (listen_fd_ >= 0) node_.names.take_away(node_.nid);
  private_fd_close(listen_fd_);
  listen_fd_ = -1;
}

bool Links::has_many(int pid) const noexcept {
  // A node has two or three. All processes that can't be seen from this pid namespace have pid 0.
  constexpr ptrdiff_t kMost = 8;
  constexpr ptrdiff_t kMostUnseen = 256;
  const auto count = std::count_if(links_.begin(), links_.end(),
                                   [pid](const auto& link) { return link.second.pid == pid; });
  return count >= (pid != 0 ? kMost : kMostUnseen);
}

void Links::on_hello(Link& link, uint16_t nid) {
  if (nid == 0 || link.nid != 0) return;
  // The process that holds the name is that node; anybody can claim to be it.
  const int fd = node_.names.open_link(nid);
  const LinkPeer owner = fd >= 0 ? peer_of(fd, node_.trust) : LinkPeer{};
  const bool is_its = fd >= 0 && owner.pid == link.pid && owner.uid == link.uid;
  private_fd_close(fd);
  // The name's owner could not be checked. A link without a name is of no use to the peer that has
  // opened it; the peer opens it again.
  if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS || fd == -EAGAIN)
    return close(link.fd, std::strerror(-fd));
  if (!is_its) {
    node_.progress.counters().unproven.add();
    log(LogLevel::info, "process %d was not shown to be node %u", link.pid, unsigned{nid});
    return;
  }
  link.nid = nid;
  // Answers and queries to that node may use this link; a link that was opened from here stays.
  link_by_nid_.emplace(nid, link.fd);
}

bool Links::is_out_of_resources(int error) noexcept {
  return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS;
}

Link* Links::to(uint16_t nid, int& error) {
  const auto known = link_by_nid_.find(nid);
  if (known != link_by_nid_.end()) return &links_.at(known->second);
  const int fd = node_.names.open_link(nid);
  error = fd;
  if (fd < 0) return nullptr;
  const LinkPeer peer = peer_of(fd, node_.trust);
  error = peer.pid < 0 ? -EPERM : std::min(send_message(fd, control::Hello{node_.nid}), 0);
  if (error < 0) {
    private_fd_close(fd);
    // Whoever hangs up at once will not be linked to: that is no matter of time.
    if (error != -EAGAIN && !is_out_of_resources(error)) error = -EPERM;
    return nullptr;
  }
  link_by_nid_[nid] = fd;
  return &add(fd, nid, peer);
}

void Links::watch(const Link& link, int operation) const noexcept {
  const uint32_t writable = link.unsent.empty() ? 0U : static_cast<uint32_t>(EPOLLOUT);
  node_.watch(link.fd, EPOLLIN | writable, operation);
}

int Links::send(Link& link, const ControlMessage& message, int fd0, int fd1) {
  constexpr size_t kMost = 4096;
  constexpr size_t kMostWithFds = 4;  // a peer that does not read must not use up descriptors
  const int result = link.unsent.empty() ? send_message(link.fd, message, fd0, fd1) : -EAGAIN;
  if (result != -EAGAIN || link.unsent.size() >= kMost) return result;
  const bool has_fds = fd0 >= 0 || fd1 >= 0;
  if (has_fds && link.unsent_fds >= kMostWithFds) return result;
  Link::Unsent& unsent = link.unsent.emplace_back();
  unsent.message = message;
  const int fds[] = {fd0, fd1};
  for (size_t i = 0; i < 2; ++i) {
    if (fds[i] < 0) continue;
    unsent.fds[i] = PrivateFd(private_fd_adopt(sys::fcntl(fds[i], F_DUPFD_CLOEXEC, 0)));
    if (unsent.fds[i].get() >= 0) continue;
    link.unsent.pop_back();
    return -EMFILE;
  }
  if (has_fds) ++link.unsent_fds;
  if (link.unsent.size() == 1) watch(link, EPOLL_CTL_MOD);
  return 0;
}

void Links::send_unsent(int fd) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  Link& link = found->second;
  while (!link.unsent.empty()) {
    const Link::Unsent& next = link.unsent.front();
    const int result = send_message(fd, next.message, next.fds[0].get(), next.fds[1].get());
    if (result == -EAGAIN) return;
    // Whatever waits for an answer to a message that can't be sent would wait forever.
    if (result < 0) return close(fd, std::strerror(-result));
    if (next.fds[0].get() >= 0 || next.fds[1].get() >= 0) --link.unsent_fds;
    link.unsent.pop_front();
  }
  watch(link, EPOLL_CTL_MOD);
}

void Links::close(int fd, const char* why, bool ended) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  const Link link = std::move(found->second);
  links_.erase(found);
  const auto named = link_by_nid_.find(link.nid);
  const bool was_named = named != link_by_nid_.end() && named->second == fd;
  if (was_named) link_by_nid_.erase(named);
  private_fd_close(fd);
  const PeerProcess peer = !ended          ? PeerProcess::may_live
                           : link.said_all ? PeerProcess::left
                                           : PeerProcess::ended;
  owner_.on_link_end(link, why, peer, was_named);
}

void Links::close_all(const char* why) {
  while (!links_.empty()) close(links_.begin()->first, why);
}

Link* Links::find(int fd) noexcept {
  const auto found = links_.find(fd);
  return found != links_.end() ? &found->second : nullptr;
}

bool Links::is_to_node(int fd) const noexcept {
  const auto found = links_.find(fd);
  return found != links_.end() && !found->second.is_for_directory;
}

void Links::read(const epoll_event& event) {
  if (!is_to_node(event.data.fd)) read(event.data.fd, event.events, ~uint64_t{0});
}

void Links::read_nodes(std::span<const epoll_event> events) {
  // Making a connection may take a second: it opens a device and registers memory. So this ends
  // when one link has taken long: the kernel reports the others again.
  constexpr uint64_t kLong = 20'000'000;
  const uint64_t limit = now_ns() + kLong;
  const size_t first = first_read_++;
  for (size_t i = 0; i < events.size() && now_ns() < limit; ++i) {
    const epoll_event& event = events[(first + i) % events.size()];
    if (is_to_node(event.data.fd)) read(event.data.fd, event.events, limit);
  }
}

void Links::read(int fd, uint32_t events, uint64_t limit) {
  if ((events & EPOLLOUT) != 0) send_unsent(fd);
  for (;;) {
    const auto found = links_.find(fd);
    if (found == links_.end()) return;
    Received received;
    const int result = receive_message(fd, received);
    if (result == -EAGAIN || result == -EINTR) return;
    if (result <= 0) {
      close(fd,
            result == 0         ? "the peer process ended"
            : result == -EPROTO ? "the peer speaks another protocol"
                                : std::strerror(-result),
            result == 0);
      return;
    }
    owner_.on_message(found->second, received);
    received.close_fds();
    if (now_ns() >= limit) return;
  }
}

}  // namespace sidestep::engine

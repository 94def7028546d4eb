// Control links to the nodes of this host: how they are opened, read, written and closed.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/manager/manager.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

Manager::Link& Manager::add_link(int fd, uint16_t nid, const LinkPeer& peer) {
  Link& link = links_[fd];
  link.fd = fd;
  link.nid = nid;
  link.pid = peer.pid;
  link.uid = peer.uid;
  link.is_own = peer.is_own;
  watch_link(link, EPOLL_CTL_ADD);
  return link;
}

void Manager::accept_links(int listen_fd) {
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
    if (has_many_links(peer.pid)) {
      log(LogLevel::info, "another link of process %d was refused: it has many", peer.pid);
      private_fd_close(fd);
      continue;
    }
    add_link(fd, 0, peer).is_for_directory = listen_fd == directory_fd_;
  }
}

bool Manager::has_many_links(int pid) const noexcept {
  // A node has two or three. All processes that can't be seen from this pid namespace have pid 0.
  constexpr ptrdiff_t kMost = 8;
  constexpr ptrdiff_t kMostUnseen = 256;
  const auto count = std::count_if(links_.begin(), links_.end(),
                                   [pid](const auto& link) { return link.second.pid == pid; });
  return count >= (pid != 0 ? kMost : kMostUnseen);
}

void Manager::on_hello(Link& link, uint16_t nid) {
  if (nid == 0 || link.nid != 0) return;
  // The process that holds the name is that node; anybody can claim to be it.
  const int fd = node_.names.open_link(nid);
  const LinkPeer owner = fd >= 0 ? peer_of(fd, node_.trust) : LinkPeer{};
  const bool is_its = fd >= 0 && owner.pid == link.pid && owner.uid == link.uid;
  private_fd_close(fd);
  // The name's owner could not be checked. A link without a name is of no use to the peer that has
  // opened it; the peer opens it again.
  if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM || fd == -ENOBUFS || fd == -EAGAIN)
    return close_link(link.fd, std::strerror(-fd));
  if (!is_its) {
    node_.progress.counters().unproven.add();
    log(LogLevel::info, "process %d was not shown to be node %u", link.pid, unsigned{nid});
    return;
  }
  link.nid = nid;
  // Answers and queries to that node may use this link; a link that was opened from here stays.
  link_by_nid_.emplace(nid, link.fd);
}

bool Manager::is_out_of_resources(int error) noexcept {
  return error == -EMFILE || error == -ENFILE || error == -ENOMEM || error == -ENOBUFS;
}

Manager::Link* Manager::link_to(uint16_t nid, int& error) {
  const auto known = link_by_nid_.find(nid);
  if (known != link_by_nid_.end()) return &links_.at(known->second);
  const int fd = node_.names.open_link(nid);
  error = fd;
  if (fd < 0) return nullptr;
  const LinkPeer peer = peer_of(fd, node_.trust);
  ControlMessage hello;
  hello.type = static_cast<uint16_t>(ControlType::hello);
  hello.nid = node_.nid;
  error = peer.pid < 0 ? -EPERM : std::min(send_message(fd, hello), 0);
  if (error < 0) {
    private_fd_close(fd);
    // Whoever hangs up at once will not be linked to: that is no matter of time.
    if (error != -EAGAIN && !is_out_of_resources(error)) error = -EPERM;
    return nullptr;
  }
  link_by_nid_[nid] = fd;
  return &add_link(fd, nid, peer);
}

void Manager::watch_link(const Link& link, int operation) noexcept {
  const uint32_t writable = link.unsent.empty() ? 0U : static_cast<uint32_t>(EPOLLOUT);
  node_.watch(link.fd, EPOLLIN | writable, operation);
}

int Manager::send(Link& link, const ControlMessage& message, int fd0, int fd1) {
  constexpr size_t kMost = 4096;
  constexpr size_t kMostWithFds = 4;  // a peer that does not read must not use up descriptors
  const int result = link.unsent.empty() ? send_message(link.fd, message, fd0, fd1) : -EAGAIN;
  if (result != -EAGAIN || link.unsent.size() >= kMost) return result;
  const bool has_fds = fd0 >= 0 || fd1 >= 0;
  if (has_fds && link.unsent_fds >= kMostWithFds) return result;
  Unsent& unsent = link.unsent.emplace_back();
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
  if (link.unsent.size() == 1) watch_link(link, EPOLL_CTL_MOD);
  return 0;
}

void Manager::send_unsent(int fd) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  Link& link = found->second;
  while (!link.unsent.empty()) {
    const Unsent& next = link.unsent.front();
    const int result = send_message(fd, next.message, next.fds[0].get(), next.fds[1].get());
    if (result == -EAGAIN) return;
    // Whatever waits for an answer to a message that can't be sent would wait forever.
    if (result < 0) return close_link(fd, std::strerror(-result));
    if (next.fds[0].get() >= 0 || next.fds[1].get() >= 0) --link.unsent_fds;
    link.unsent.pop_front();
  }
  watch_link(link, EPOLL_CTL_MOD);
}

void Manager::close_link(int fd, const char* why, bool ended) {
  const auto found = links_.find(fd);
  if (found == links_.end()) return;
  const Link link = std::move(found->second);
  links_.erase(found);
  const auto named = link_by_nid_.find(link.nid);
  const bool was_asked_over = named != link_by_nid_.end() && named->second == fd;
  if (was_asked_over) link_by_nid_.erase(named);
  private_fd_close(fd);
  std::erase(directory_wanted_, fd);
  if (const auto abroad = links_abroad_.find(link.uid);
      abroad != links_abroad_.end() && abroad->second == fd)
    lose_abroad(link.uid);
  if (fd == directory_link_) directory_link_ = -1;
  if (std::erase(seeking_, fd) != 0) seek_soon();
  const PeerProcess peer = !ended          ? PeerProcess::may_live
                           : link.said_all ? PeerProcess::left
                                           : PeerProcess::ended;
  for (Connection* const connection : link.connections)
    if (connection != nullptr) node_.streams.lose_connection(*connection, why, peer);
  for (uint16_t lane = 0; lane < kLanes; ++lane) {
    const auto pending = pending_.find({link.nid, lane});
    if (pending != pending_.end() && pending->second.link == fd)
      give_up(link.nid, lane, Reason::peer_gone);
  }
  paths_.forget(link.nid);  // another process may get this NID next
  if (was_asked_over) forget_answers_of(link.nid);
}

void Manager::on_link(int fd, uint32_t events, uint64_t limit) {
  if ((events & EPOLLOUT) != 0) send_unsent(fd);
  for (;;) {
    const auto found = links_.find(fd);
    if (found == links_.end()) return;
    Received received;
    const int result = receive_message(fd, received);
    if (result == -EAGAIN || result == -EINTR) return;
    if (result <= 0) {
      close_link(fd,
                 result == 0         ? "the peer process ended"
                 : result == -EPROTO ? "the peer speaks another protocol"
                                     : std::strerror(-result),
                 result == 0);
      return;
    }
    on_message(found->second, received);
    received.close_fds();
    if (now_ns() >= limit) return;
  }
}

}  // namespace sidestep::engine

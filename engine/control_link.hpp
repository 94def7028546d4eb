#pragma once
/// Sockets of the control plane: abstract names, and messages with descriptors.
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/trust.hpp"
#include "engine/control_message.hpp"

namespace sidestep::engine {

/// The abstract name of a node; returns the length for bind() and connect(). All users of a network
/// namespace share the NIDs, so that those that trust each other can tell their nodes apart.
socklen_t node_address(uint16_t nid, sockaddr_un& address) noexcept;
/// The same for who hands out a user's directory. There are a few such names, because a stranger
/// can take one: the first that is that user's counts.
socklen_t directory_address(uid_t user, unsigned seat, sockaddr_un& address) noexcept;
inline constexpr unsigned kDirectorySeats = 4;
/// NIDs of all users' nodes in this network namespace, ascending, out of /proc/net/unix. Nullopt:
/// there was no descriptor to read it by.
std::optional<std::vector<uint16_t>> list_node_names();
/// The same out of the text of such a file.
std::vector<uint16_t> parse_node_names(const std::string& text);

/// A listening socket under the node's name, or -errno (EADDRINUSE: the NID is taken).
int listen_as(uint16_t nid) noexcept;
int listen_for_directory(unsigned seat) noexcept;  ///< of this user
/// A connected, non-blocking socket to a node of this host, or -errno.
int open_link(uint16_t nid) noexcept;
int open_link_to_directory(uid_t user, unsigned seat) noexcept;

/// The process at the other end of a link, as the kernel attests it (SO_PEERCRED).
struct LinkPeer {
  int pid = -1;  ///< -1: it is neither of this user nor trusted
  uid_t uid = 0;
  bool is_own = false;  ///< of this user
};
LinkPeer peer_of(int link, const config::Trust& trust = {}) noexcept;

/// Sends one message with up to two descriptors; 0 or -errno.
int send_message(int link, const ControlMessage& message, int fd0 = -1, int fd1 = -1) noexcept;

struct Received {
  ControlMessage message;
  int fds[2] = {-1, -1};
  void close_fds() noexcept;
};
/// 1: a sound message; 0: the other end has gone; -EAGAIN: nothing there; -EPROTO: not a message of
/// ours (descriptors that came with it are closed).
int receive_message(int link, Received& received) noexcept;

}  // namespace sidestep::engine

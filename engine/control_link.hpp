#pragma once
/// Sockets of the control plane: abstract names, and messages with descriptors.
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/control_message.hpp"

namespace sidestep::engine {

/// The abstract name of a node of this user; returns the length for bind() and connect().
socklen_t node_address(uint16_t nid, sockaddr_un& address) noexcept;
/// The same for who hands out the directory. There are a few such names, because a stranger can
/// take one: the first that is this user's counts.
socklen_t directory_address(unsigned seat, sockaddr_un& address) noexcept;
inline constexpr unsigned kDirectorySeats = 4;
/// NIDs of this user's nodes in this network namespace, ascending, out of /proc/net/unix. Nullopt:
/// there was no descriptor to read it by.
std::optional<std::vector<uint16_t>> list_node_names();
/// The same out of the text of such a file, for user `uid`.
std::vector<uint16_t> parse_node_names(const std::string& text, unsigned uid);

/// A listening socket under the node's name, or -errno (EADDRINUSE: the NID is taken).
int listen_as(uint16_t nid) noexcept;
int listen_for_directory(unsigned seat) noexcept;
/// A connected, non-blocking socket to a node of this host, or -errno.
int open_link(uint16_t nid) noexcept;
int open_link_to_directory(unsigned seat) noexcept;
/// pid of the process at the other end if it is of this user, else -1.
int peer_pid(int link) noexcept;

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

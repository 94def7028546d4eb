#pragma once
/// What the kernel says about a descriptor that the shim does not track.
#include <netinet/in.h>
#include <sys/socket.h>

#include "engine/base/sys.hpp"

namespace sidestep::preload {

inline int socket_option(int fd, int name) noexcept {
  int value = -1;
  socklen_t length = sizeof value;
  return engine::sys::getsockopt(fd, SOL_SOCKET, name, &value, &length) < 0 ? -1 : value;
}

inline bool is_tcp(int fd) noexcept {
  return socket_option(fd, SO_TYPE) == SOCK_STREAM && socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP;
}

inline bool is_listening(int fd) noexcept {
  return socket_option(fd, SO_ACCEPTCONN) == 1;
}

}  // namespace sidestep::preload

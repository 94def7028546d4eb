#pragma once
/// TCP on the loopback interface, for programs that simply exit with a message on failure.
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "tests/programs/die.hpp"

namespace pair {

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

/// Returns a listening socket, and the port that the kernel chose for it.
inline int listen_on_loopback(int backlog, int& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd, generic, length) != 0 || listen(fd, backlog) != 0 ||
      getsockname(fd, generic, &length) != 0)
    die("listen");
  port = ntohs(address.sin_port);
  return fd;
}

inline int connect_on_loopback(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) die("connect");
  return fd;
}

}  // namespace pair

#pragma once
/// What the kernel counts on a TCP socket (TCP_INFO, Linux 4.19 and later).
#include <linux/tcp.h>
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/sys.hpp"

namespace sidestep::engine {

struct TcpCounts {
  uint64_t sent;      ///< bytes that the program has handed over, acknowledged or not
  uint64_t received;  ///< bytes that have arrived in order, read or not
};

/// nullopt when the descriptor is no TCP socket or the kernel is too old to tell.
inline std::optional<TcpCounts> tcp_counts(int fd) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0 ||
      length < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans)
    return std::nullopt;
  return TcpCounts{info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes,
                   info.tcpi_bytes_received};
}

}  // namespace sidestep::engine

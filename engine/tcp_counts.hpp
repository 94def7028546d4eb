#pragma once
/// What the kernel counts on a TCP socket (TCP_INFO, Linux 4.19 and later).
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/sys.hpp"

namespace sidestep::engine {

struct TcpCounts {
  uint64_t sent;      ///< bytes that the program has handed over, acknowledged or not
  uint64_t received;  ///< bytes that have arrived in order, read or not
  uint64_t acked;     ///< that the peer has acknowledged; its own SYN counts for who connected
};

/// nullopt when the descriptor is no TCP socket or the kernel is too old to tell.
inline std::optional<TcpCounts> tcp_counts(int fd) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0 ||
      length < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans)
    return std::nullopt;
  return TcpCounts{info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes,
                   info.tcpi_bytes_received, info.tcpi_bytes_acked};
}

/// As TcpCounts::sent, which counts a segment again that the host itself could not send at first (a
/// link that is down). `accepted`: by accept(), not by connect().
inline std::optional<uint64_t> tcp_written(int fd, bool accepted) noexcept {
  for (int i = 0; i < 4; ++i) {
    const auto before = tcp_counts(fd);
    int queued = 0;
    if (!before || sys::ioctl(fd, SIOCOUTQ, &queued) != 0) return std::nullopt;
    const auto after = tcp_counts(fd);
    // Nothing was acknowledged in between.
    if (after && after->acked == before->acked)
      return after->acked + static_cast<uint64_t>(queued) - (accepted ? 0 : 1);
  }
  return std::nullopt;
}

}  // namespace sidestep::engine

#pragma once
/// What the kernel counts on a TCP socket (TCP_INFO, Linux 4.19 and later).
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "engine/base/sys.hpp"
#include "engine/base/tcp_state.hpp"

namespace sidestep::engine {

struct TcpCounts {
  uint64_t sent;      ///< bytes that the program has handed over, acknowledged or not
  uint64_t received;  ///< bytes that have arrived in order, read or not
  uint64_t acked;     ///< that the peer has acknowledged; includes the SYN if this end connected
};

/// The kernel counts the end of a direction (FIN) as a byte: the peer's among the received bytes,
/// the socket's own among the acknowledged ones. A closed socket may have been reset, without any
/// FIN.
constexpr uint64_t peers_end(TcpState state) noexcept {
  return peer_has_ended(state) && state != TcpState::close ? 1 : 0;
}
constexpr uint64_t own_end(TcpState state) noexcept {
  return state == TcpState::fin_wait2 ? 1 : 0;
}

/// nullopt when the descriptor is no TCP socket or the kernel is too old to tell.
inline std::optional<TcpCounts> tcp_counts(int fd) noexcept {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0 ||
      length < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans)
    return std::nullopt;
  const auto state = static_cast<TcpState>(info.tcpi_state);
  return TcpCounts{info.tcpi_bytes_sent - info.tcpi_bytes_retrans + info.tcpi_notsent_bytes,
                   info.tcpi_bytes_received - peers_end(state),
                   info.tcpi_bytes_acked - own_end(state)};
}

/// Returns how many bytes TCP has been given beyond the `own` that somebody counted; nullopt if
/// that cannot be determined: no TCP socket, an old kernel, or acknowledgments that come faster
/// than they can be counted. `accepted`: the socket comes from accept(), not from connect().
///
/// Counts in two ways, of which the smaller result is right. TcpCounts::sent counts a segment twice
/// if the host itself could not send it at first (a link was down). Of the acknowledged and the
/// queued bytes, one count may change while the other is read.
inline std::optional<uint64_t> tcp_excess(int fd, bool accepted, uint64_t own) noexcept {
  constexpr int kTries = 16;  // a few microseconds each
  const auto beyond = [own](uint64_t count) { return count > own ? count - own : 0; };
  for (int i = 0; i < kTries; ++i) {
    const auto before = tcp_counts(fd);
    if (!before) return std::nullopt;
    if (beyond(before->sent) == 0) return 0;
    int queued = 0;
    if (sys::ioctl(fd, SIOCOUTQ, &queued) != 0) return std::nullopt;
    const auto after = tcp_counts(fd);
    if (after && after->acked == before->acked)
      return std::min(beyond(after->sent),
                      beyond(after->acked + static_cast<uint64_t>(queued) - (accepted ? 0 : 1)));
  }
  return std::nullopt;
}

}  // namespace sidestep::engine

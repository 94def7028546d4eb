#pragma once
/// Datagrams that leave from one of this host's addresses, whatever routing would choose (ipv6(7),
/// IPV6_PKTINFO).
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

/// The result of sendmsg(2), or -errno: also where this host has no such address (any more). `fd`:
/// an IPv6 socket; `own`: an address, of IPv4 a mapped one. Any thread.
long send_datagram_from(int fd, const std::array<uint8_t, 16>& own, const sockaddr_in6& to,
                        void* data, size_t size) noexcept;

}  // namespace sidestep::engine

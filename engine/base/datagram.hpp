#pragma once
/// Datagrams that leave from a chosen address of this host, whatever routing would choose (ipv6(7),
/// IPV6_PKTINFO).
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

/// Returns the result of sendmsg(2), or -errno; it fails if this host does not have the address, or
/// no longer has it. `fd`: an IPv6 socket; `own`: the source address, as a mapped one if it is
/// IPv4. Any thread.
long send_datagram_from(int fd, const std::array<uint8_t, 16>& own, const sockaddr_in6& to,
                        void* data, size_t size) noexcept;

}  // namespace sidestep::engine

#pragma once
/// In which state the kernel has a TCP connection (tcp(7), TCP_INFO).
///
/// A connection is identified by its addresses and ports only as long as it is established: the
/// same four may belong to another one a moment later. Once it has ended it is never established
/// again.
#include <cstdint>

namespace sidestep::engine {

/// The values are the kernel's. A few of them.
enum class TcpState : uint8_t {
  unknown = 0,  ///< it is no TCP socket
  established = 1,
  syn_sent = 2,
  close = 7,
  close_wait = 8,  ///< the peer has ended its direction
};

TcpState tcp_state(int fd) noexcept;

}  // namespace sidestep::engine

#pragma once
/// In which state the kernel has a TCP connection (tcp(7), TCP_INFO).
///
/// A connection is identified by its addresses and ports only as long as it is open, which is until
/// both directions have ended or it is reset: the same four may belong to another one a moment
/// later. A SYN that meets an open end gets no connection, but an answer that makes its sender
/// reset that end. Once it has ended it is never open again.
#include <cstdint>

namespace sidestep::engine {

/// The values are the kernel's. A few of them.
enum class TcpState : uint8_t {
  unknown = 0,  ///< it is no TCP socket
  established = 1,
  syn_sent = 2,
  fin_wait1 = 4,  ///< this end has ended its direction
  fin_wait2 = 5,  ///< and the peer knows
  close = 7,
  close_wait = 8,  ///< the peer has ended its direction
  last_ack = 9,    ///< and then this end
  closing = 11,    ///< this end, and then the peer
};

TcpState tcp_state(int fd) noexcept;

/// At least one direction can still carry bytes.
constexpr bool is_open(TcpState state) noexcept {
  return state == TcpState::established || state == TcpState::close_wait ||
         state == TcpState::fin_wait1 || state == TcpState::fin_wait2;
}
/// Nothing comes any more but what has come.
constexpr bool peer_has_ended(TcpState state) noexcept {
  return state == TcpState::close_wait || state == TcpState::last_ack ||
         state == TcpState::closing || state == TcpState::close;
}

}  // namespace sidestep::engine

#pragma once
/// The kernel's state of a TCP connection (tcp(7), TCP_INFO).
///
/// Addresses and ports identify a connection only while it is open, which is until both directions
/// have ended or it is reset: a moment later the same four may belong to another one. A SYN that
/// meets an open end gets no connection, but an answer that makes its sender reset that end. A
/// connection that has ended is never open again.
#include <cstdint>

namespace sidestep::engine {

/// A few of the kernel's states, with the kernel's values.
enum class TcpState : uint8_t {
  unknown = 0,  ///< not a TCP socket
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

/// True if at least one direction can still carry bytes.
constexpr bool is_open(TcpState state) noexcept {
  return state == TcpState::established || state == TcpState::close_wait ||
         state == TcpState::fin_wait1 || state == TcpState::fin_wait2;
}
/// True if nothing more will arrive than what already has.
constexpr bool peer_has_ended(TcpState state) noexcept {
  return state == TcpState::close_wait || state == TcpState::last_ack ||
         state == TcpState::closing || state == TcpState::close;
}

}  // namespace sidestep::engine

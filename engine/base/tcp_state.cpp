#include "engine/base/tcp_state.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "engine/base/sys.hpp"

namespace sidestep::engine {

static_assert(static_cast<int>(TcpState::established) == TCP_ESTABLISHED &&
              static_cast<int>(TcpState::syn_sent) == TCP_SYN_SENT &&
              static_cast<int>(TcpState::fin_wait1) == TCP_FIN_WAIT1 &&
              static_cast<int>(TcpState::fin_wait2) == TCP_FIN_WAIT2 &&
              static_cast<int>(TcpState::close) == TCP_CLOSE &&
              static_cast<int>(TcpState::close_wait) == TCP_CLOSE_WAIT &&
              static_cast<int>(TcpState::last_ack) == TCP_LAST_ACK &&
              static_cast<int>(TcpState::closing) == TCP_CLOSING);

TcpState tcp_state(int fd) noexcept {
  uint8_t state = 0;  // the first member of tcp_info; the kernel fills in what fits
  socklen_t length = sizeof state;
  const bool told = sys::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &state, &length) == 0;
  return told ? static_cast<TcpState>(state) : TcpState::unknown;
}

}  // namespace sidestep::engine

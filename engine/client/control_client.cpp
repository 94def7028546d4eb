#include "engine/client/control_client.hpp"

#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "engine/control/control_link.hpp"

namespace sidestep::engine {

std::vector<uint16_t> local_nodes(const NodeNames& names) {
  std::vector<uint16_t> nodes = names.list().value_or(std::vector<uint16_t>());
  std::erase_if(nodes, [&names](uint16_t nid) {
    const int link = names.open_link(nid);
    const bool is_own = link >= 0 && peer_of(link).is_own;
    private_fd_close(link);
    return !is_own;
  });
  return nodes;
}

std::string fetch_status(const NodeNames& names, uint16_t nid, int timeout_ms) {
  std::string text;
  const int link = names.open_link(nid);
  if (link < 0) return text;
  if (!peer_of(link).is_own) {
    private_fd_close(link);
    return text;
  }
  pollfd answer{link, POLLIN, 0};
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  Received received;
  if (send_message(link, control::Status{}) == 0 && sys::ppoll(&answer, 1, &limit, nullptr) == 1 &&
      receive_message(link, received) == 1) {
    if (received.fds[0] >= 0) {
      char buffer[16384];
      long offset = 0;
      for (long n; (n = sys::call(SYS_pread64, received.fds[0], buffer, sizeof buffer, offset)) > 0;
           offset += n)
        text.append(buffer, static_cast<size_t>(n));
    }
    received.close_fds();
  }
  private_fd_close(link);
  return text;
}

}  // namespace sidestep::engine

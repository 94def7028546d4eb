#include "engine/manager/this_node.hpp"

#include <string>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

void ThisNode::read_trust() {
  std::vector<std::string> unknown;
  trust = config::Trust::read(config.trust, unknown);
  for (const std::string& name : unknown)
    log(LogLevel::warn,
        "SIDESTEP_TRUST: '%s' is neither in /etc/passwd nor in /etc/group, and is not trusted; its "
        "number may be written instead",
        name.c_str());
}

void ThisNode::watch(int fd, uint32_t events, int operation) const noexcept {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  sys::epoll_ctl(epoll_fd, operation, fd, &event);
}

bool ThisNode::has_both_ends(const Tuple& tuple) {
  return !may_lead_away(tuple) || own_addresses.contains(tuple.remote, now_ns());
}

Device* ThisNode::device_for_others() noexcept {
  return progress.device_for(progress.devices().kind_for(false, false));
}

}  // namespace sidestep::engine

#pragma once
/// Sockets of the control plane: names of nodes, and messages with descriptors.
#include <sys/un.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "config/trust.hpp"
#include "engine/wire/control_message.hpp"

namespace sidestep::engine {

/// The process at the other end of a link, as the kernel attests it (SO_PEERCRED).
struct LinkPeer {
  int pid = -1;  ///< -1: the peer neither belongs to this user nor is trusted
  uid_t uid = 0;
  bool is_own = false;  ///< belongs to this user
};
LinkPeer peer_of(int link, const config::Trust& trust = {}) noexcept;
/// True if a user namespace with this map (/proc/self/uid_map) has all users of the host, so that
/// none of them appears as kNobodys.
bool maps_all_users(std::string_view map) noexcept;
/// The ID by which a user namespace shows users that it does not have
/// (/proc/sys/kernel/overflowuid).
inline constexpr uid_t kNobodys = 65534;

/// Sends one message with up to two descriptors. Returns 0 or -errno.
int send_message(int link, const ControlMessage& message, int fd0 = -1, int fd1 = -1) noexcept;

struct Received {
  ControlMessage message;
  int fds[2] = {-1, -1};
  void close_fds() noexcept;
};
/// Returns 1 for a sound message, 0 if the other end has gone, -EAGAIN if nothing is there, and
/// -EPROTO for something that is not our message (descriptors that came with it are closed).
int receive_message(int link, Received& received) noexcept;

}  // namespace sidestep::engine

#pragma once
/// A node on another host: how it is named, and how a datagram to it begins. Plain data.
#include <cstdint>

#include "engine/connection/connection.hpp"
#include "engine/control/discovery.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

struct RemoteNode {
  PeerName name;
  Discovery::Ip own_ip{};  ///< the address by which it knows this host
  uint64_t incarnation = 0;
};

/// A message from `from` to `to` about the attempt to connect the two that has this name.
inline DiscoveryMessage message_between(const ThisNode& from, const RemoteNode& to,
                                        DiscoveryType type, uint64_t attempt) noexcept {
  DiscoveryMessage message;
  message.type = static_cast<uint16_t>(type);
  message.question = attempt;
  message.from = from.incarnation;
  message.from_nid = from.nid;
  message.to = to.incarnation;
  message.to_nid = to.name.nid;
  return message;
}

}  // namespace sidestep::engine

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

/// The header of a message from `from` to `to` about the attempt to connect the two that has this
/// name.
inline DiscoveryHeader header_between(const ThisNode& from, const RemoteNode& to,
                                      uint64_t attempt) noexcept {
  DiscoveryHeader header;
  header.question = attempt;
  header.from = from.incarnation;
  header.from_nid = from.nid;
  header.to = to.incarnation;
  header.to_nid = to.name.nid;
  return header;
}

}  // namespace sidestep::engine

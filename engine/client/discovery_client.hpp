#pragma once
/// Asks hosts over UDP whether a node answers there, for a tool that is not a node.
///
/// The question is one that every node answers with no: who holds a TCP connection between ports 0?
/// The tool asks from a port of its own and never from the discovery port, which would take
/// datagrams away from the nodes of this host.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/address.hpp"
#include "engine/control/cluster_key.hpp"

namespace sidestep::engine {

struct HostReply {
  enum class Kind : uint8_t {
    answered,
    elsewhere,    ///< the answer came from another address, so a node would not believe it
    refused,      ///< ICMP says that nothing listens on the port
    unreachable,  ///< the network or this kernel says that the question can't get there
    silent,
  };
  Kind kind = Kind::silent;
  int error = 0;  ///< unreachable: an errno value
  /// elsewhere: that address; refused, unreachable: the sender of that ICMP, if not the host
  std::string from;
};

/// Asks up to 64 hosts at the same time, each several times, then the next 64. Each batch ends when
/// all have replied or `timeout_ms` have passed. The ports in `hosts` do not matter; the key must
/// be none or usable. May throw std::bad_alloc.
std::vector<HostReply> ask_hosts(std::span<const Address> hosts, uint16_t port,
                                 const ClusterKey& key, int timeout_ms);

}  // namespace sidestep::engine

#pragma once
/// What the nodes of two hosts say to each other in datagrams: discovery, exchange and failures.
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/base/address.hpp"
#include "engine/base/message_auth.hpp"
#include "engine/wire/endpoint_address.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

/// unproven: like later; the asker was not shown to hold the other end of the connection here.
enum class OwnerAnswer : uint32_t { no = 0, yes = 1, later = 2, unproven = 3 };

/// What the kernel has counted on one end of a connection: the other end has sent what was received
/// here, and it has received what was acknowledged here. Both counts only grow, so this holds
/// however late they are looked at. 0 if not known.
struct EndCounts {
  uint64_t received = 0;
  uint64_t acked = 0;
};

enum class DiscoveryType : uint16_t {
  who_has = 1,  ///< do you hold the other end of this TCP connection? `from` is who asks
  owner = 2,    ///< the answer; `from` is who holds it
  connect = 3,  ///< my endpoint; if both send one, the request of the lower incarnation counts
  accept = 4,   ///< the answer, with mine; sent again until `ready` comes
  ready = 5,    ///< both ends are joined: the acceptor may send
  refuse = 6,   ///< no connection this way
  gone = 7,     ///< no node of that incarnation is here
  /// our connection is unusable; one of several parts of the reports, stream/recovery.hpp
  failed = 8,
  failed_ack = 9,  ///< that part has arrived
  leave = 10,      ///< the process of `from` ends; answer: 1 if all it had to say has arrived
};

/// A datagram between hosts (control/discovery.hpp). Little-endian.
struct DiscoveryMessage {
  static constexpr uint32_t kMagic = 0x32504453;  // "SDP2"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: DiscoveryType
  uint64_t question = 0;    // 8: the asker's, given back: number and nonce; in connect: the attempt
  uint64_t from = 0;        // 16: incarnation of the node that this speaks for
  uint64_t to = 0;          // 24: incarnation of the node that it is for; 0: any on the host
  uint16_t from_nid = 0;    // 32
  uint16_t to_nid = 0;      // 34
  uint32_t answer = 0;      // 36: owner: OwnerAnswer; failed: how many reports are in it, 0 to 2
  uint32_t stream = 0;      // 40: owner: the stream that was asked for; failed: number of the part
  uint32_t generation = 0;  // 44: who_has: of the asker's stream; owner: of `stream`; failed: how
                            // many parts there are; connect: see Remote
  EndpointAddress endpoint;  // 48: connect, accept; failed: the first report
  Tuple tuple;               // 96: who_has, owner: as its owner sees it; failed: the second report
  EndCounts counts;          // 136: who_has, owner: of the sender's end
  Digest mac{};              // 152: over all before it (control/cluster_key.hpp); 0 without a key
};
static_assert(sizeof(DiscoveryMessage) == 184 && offsetof(DiscoveryMessage, tuple) == 96 &&
              offsetof(DiscoveryMessage, mac) == 152);
static_assert(std::has_unique_object_representations_v<DiscoveryMessage>);  // no gaps

}  // namespace sidestep::engine

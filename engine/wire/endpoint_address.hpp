#pragma once
/// What each end of a connection tells the other while it is being made: how to reach its endpoint.
/// Travels in control messages inside a host and in exchange datagrams between hosts.
#include <cstddef>
#include <cstdint>

namespace sidestep::engine {

enum class DeviceKind : uint8_t { none = 0, shm = 1, verbs = 2 };

/// Little-endian. The receiver checks every field before using it.
struct EndpointAddress {
  static constexpr uint8_t kRoce = 1;    ///< the port is Ethernet
  static constexpr uint8_t kRoceV2 = 2;  ///< the GID is one of RoCEv2
  static constexpr uint8_t kHasGid = 4;
  static constexpr uint8_t kHashed = 8;  ///< trailers shall cover the bytes; either end decides it

  uint8_t device = 0;         // 0: DeviceKind
  uint8_t flags = 0;          // 1
  uint8_t mtu = 0;            // 2: verbs: MTU of the port, an ibv_mtu
  uint8_t reserved = 0;       // 3
  uint32_t window = 0;        // 4: verbs: work requests that the peer may post at first
  uint64_t orb_size = 0;      // 8: bytes of this end's ring
  uint32_t qp = 0;            // 16: verbs: queue pair number
  uint32_t psn = 0;           // 20: verbs: first packet sequence number that this end sends
  uint32_t request_size = 0;  // 24: verbs: bytes of one work request that this end can receive
  uint16_t lid = 0;           // 28: verbs on InfiniBand
  uint16_t reserved2 = 0;     // 30
  uint8_t gid[16] = {};       // 32: verbs
};
static_assert(sizeof(EndpointAddress) == 48 && offsetof(EndpointAddress, gid) == 32);

}  // namespace sidestep::engine

#pragma once
/// What the managers of one host say to each other over abstract unix sockets (SOCK_SEQPACKET).
///
/// Every node listens on "@sidestep.<version>.<nid>". A node claims a NID by binding that name: the
/// kernel gives it to one process, and takes it back however that process ends. The bound names are
/// the registry of this host, and nothing has to be cleaned up. The directory tells which node to
/// ask about a stream (control/directory.hpp).
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/wire/discovery_message.hpp"
#include "engine/wire/endpoint_address.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

enum class ControlType : uint16_t {
  hello = 1,    ///< first on a link, by the side that opened it
  who_has = 2,  ///< do you hold the other end of this TCP connection? (tuple as the asked node sees
                ///< it) With one descriptor where it is needed: the asker's end_token().
  owner = 3,    ///< the answer; if it is yes and such a descriptor is wanted, with one
  connect = 4,  ///< my endpoint; for shared memory with descriptors: its memory and, in the
                ///< first lane only (lane.hpp), my doorbell
  accept = 5,   ///< the answer, likewise
  refuse = 6,   ///< no connection this way: ours is under way, or something failed here
  status = 7,   ///< asks for the status document
  status_reply = 8,      ///< with one descriptor: a memfd that holds it
  failed = 9,            ///< with one descriptor: our connection is unusable; stream/recovery.hpp
  relay = 10,            ///< a datagram of another host that is for you
  leave = 11,            ///< my process ends, and everything it had to say has arrived
  directory = 12,        ///< asks for the directory (control/directory.hpp)
  directory_reply = 13,  ///< with one descriptor: its file; without: the node has none yet
  entered = 14,  ///< the connecting end of this TCP connection (tuple as it sees it) is there now
  find = 15,     ///< from a trusted user, to the node that hands out a directory: which nodes does
                 ///< it list as holders of this connecting end?
  found = 16,    ///< the answer
  path = 17,     ///< this number of yours has arrived at tuple.local from tuple.remote
                 ///< (control/network_path.hpp)
  path_ok = 18,  ///< the answer, if that is right: the same given back
};

/// The node of another host on whose behalf the sender asks for the owner of a stream.
struct RemoteAsker {
  uint64_t incarnation = 0;      // 0: 0 if there is no such node: the asker is on this host
  std::array<uint8_t, 16> ip{};  // 8: of its host
  uint16_t nid = 0;              // 24
  uint16_t reserved[3] = {};     // 26
};
static_assert(sizeof(RemoteAsker) == 32);

struct ControlMessage {
  static constexpr uint32_t kMagic = 0x50454453;  // "SDEP"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: ControlType
  uint16_t nid = 0;                               // 8: of the sender
  uint16_t lane = 0;                              // 10: connect, accept, refuse, failed
  uint32_t answer = 0;                            // 12: OwnerAnswer
  uint32_t stream = 0;            // 16: who_has, owner, find: the asker's stream, given back
  uint32_t generation = 0;        // 20
  uint32_t owner_stream = 0;      // 24: owner: the stream that was asked for
  uint32_t owner_generation = 0;  // 28
  EndpointAddress endpoint;       // 32: connect, accept
  Tuple tuple;                    // 80: who_has, entered, find, path, path_ok
  uint64_t incarnation = 0;       // 120: of the sender
  RemoteAsker asker;              // 128: who_has, relay: where the datagram came from
  uint16_t asker_port = 0;        // 160: relay
  uint16_t wants_token = 0;       // 162: who_has: the sender can't see the receiver's descriptors
  uint16_t path_port = 0;     // 164: who_has: of the asker's datagrams (control/network_path.hpp)
  uint16_t reserved2 = 0;     // 166
  int32_t holder_thread = 0;  // 168: who_has, owner: a thread of the sender, through which
  int32_t holder_fd = -1;     // 172: others can see that this descriptor is its end
  EndCounts counts;           // 176: who_has, owner: of the end in question
  uint64_t path_number = 0;   // 192: path, path_ok
  DiscoveryMessage datagram;  // 200: relay
  std::array<uint16_t, 8> nids{};  // 384: found; 0 after the last
};
static_assert(sizeof(ControlMessage) == 400 && offsetof(ControlMessage, datagram) == 200);

}  // namespace sidestep::engine

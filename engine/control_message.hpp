#pragma once
/// What the managers of one host say to each other over abstract unix sockets (SOCK_SEQPACKET).
///
/// Every node listens on "@sidestep.<version>.<nid>". Binding that name is how a NID is
/// claimed: the kernel gives it to one process, and takes it back however that process ends. The
/// names that are bound are the registry of this host; nothing has to be cleaned up. Which of the
/// nodes has to be asked about a stream the directory tells (directory.hpp).
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/base/address.hpp"
#include "engine/base/message_auth.hpp"
#include "engine/device/endpoint_address.hpp"
#include "engine/wire.hpp"

namespace sidestep::engine {

enum class ControlType : uint16_t {
  hello = 1,  ///< first on a link, by the side that opened it
  who_has,  ///< do you hold the other end of this TCP connection? (tuple as the asked node sees it)
            ///< Where it is needed with one descriptor, the asker's end_token().
  owner,    ///< the answer; where it is yes, and such a descriptor is wanted, with one
  connect,  ///< my endpoint; for shared memory with descriptors: its memory, and where it is that
            ///< of the first lane (lane.hpp), my doorbell
  accept,   ///< the answer, alike
  refuse,   ///< no connection this way: ours is under way, or something failed here
  status,   ///< asks for the status document
  status_reply,     ///< with one descriptor: a memfd that holds it
  failed,           ///< with one descriptor: our connection is unusable; recovery.hpp
  relay,            ///< a datagram of another host that is for you
  leave,            ///< my process ends, and everything it had to say has arrived
  directory,        ///< asks for the directory (directory.hpp)
  directory_reply,  ///< with one descriptor: its file; without: the node has none yet
  entered,  ///< the connecting end of this TCP connection (tuple as it sees it) is there now
  find,     ///< of a trusted user, to who hands out a directory: which nodes are in it as
            ///< holders of this connecting end?
  found,    ///< the answer
  path,     ///< this number of yours has arrived, at tuple.local, from tuple.remote
            ///< (network_path.hpp)
  path_ok,  ///< the answer, given back, where that is right
};

/// unproven: like later; the asker was not shown to hold the other end of what is here.
enum class OwnerAnswer : uint32_t { no = 0, yes = 1, later = 2, unproven = 3 };

/// Who asks for the owner of a stream on behalf of another host.
struct RemoteAsker {
  uint64_t incarnation = 0;      // 0: nobody, the asker is on this host
  std::array<uint8_t, 16> ip{};  // 8: of its host
  uint16_t nid = 0;              // 24
  uint16_t reserved[3] = {};     // 26
};
static_assert(sizeof(RemoteAsker) == 32);

/// What the kernel has counted on an end of a connection: what arrived there the other end has
/// sent, and what was acknowledged to it has arrived at the other. Both only grow, so that it holds
/// however late this is looked at. 0 where it is not known.
struct EndCounts {
  uint64_t received = 0;
  uint64_t acked = 0;
};

enum class DiscoveryType : uint16_t {
  who_has = 1,  ///< do you hold the other end of this TCP connection? `from` is who asks
  owner,        ///< the answer; `from` is who holds it
  connect,      ///< my endpoint; the lower incarnation's request counts where both send one
  accept,       ///< the answer, with mine; sent again until `ready` comes
  ready,        ///< both ends are joined: the acceptor may send
  refuse,       ///< no connection this way
  gone,         ///< nobody of that incarnation is here
  failed,       ///< our connection is unusable; one of several parts of the reports, recovery.hpp
  failed_ack,   ///< that part is here
  leave,        ///< the process of `from` ends; answer: 1 where all it had to say has arrived
};

/// A datagram between hosts (discovery.hpp). Little-endian.
struct DiscoveryMessage {
  static constexpr uint32_t kMagic = 0x32504453;  // "SDP2"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: DiscoveryType
  uint64_t question = 0;    // 8: the asker's, given back: number and nonce; of connect: the attempt
  uint64_t from = 0;        // 16: incarnation of the node that this speaks for
  uint64_t to = 0;          // 24: incarnation of the node that it is for; 0: any of the host
  uint16_t from_nid = 0;    // 32
  uint16_t to_nid = 0;      // 34
  uint32_t answer = 0;      // 36: owner: OwnerAnswer; failed: how many reports are in it, 0 to 2
  uint32_t stream = 0;      // 40: owner: the stream that was asked for; failed: number of the part
  uint32_t generation = 0;  // 44: who_has: of the asker's stream; owner: of `stream`; failed: how
                            // many parts there are; connect: see Remote
  EndpointAddress endpoint;  // 48: connect, accept; failed: the first report
  Tuple tuple;               // 96: who_has, owner: as its owner sees it; failed: the second report
  EndCounts counts;          // 136: who_has, owner: of the sender's end
  Digest mac{};              // 152: over all before it (cluster_key.hpp); 0 without a key
};
static_assert(sizeof(DiscoveryMessage) == 184 && offsetof(DiscoveryMessage, tuple) == 96 &&
              offsetof(DiscoveryMessage, mac) == 152);
static_assert(std::has_unique_object_representations_v<DiscoveryMessage>);  // no gaps

struct ControlMessage {
  static constexpr uint32_t kMagic = 0x50454453;  // "SDEP"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: ControlType
  uint16_t nid = 0;                               // 8: of the sender
  uint16_t lane = 0;                              // 10: connect, accept, refuse, failed
  uint32_t answer = 0;                            // 12: OwnerAnswer
  uint32_t stream = 0;             // 16: who_has, owner: the asker's stream, given back
  uint32_t generation = 0;         // 20
  uint32_t owner_stream = 0;       // 24: owner: the stream that was asked for
  uint32_t owner_generation = 0;   // 28
  EndpointAddress endpoint;        // 32: connect, accept
  Tuple tuple;                     // 80: who_has
  uint64_t incarnation = 0;        // 120: of the sender
  RemoteAsker asker;               // 128: who_has, relay: where the datagram came from
  uint16_t asker_port = 0;         // 160: relay
  uint16_t wants_token = 0;        // 162: who_has: the sender can't see the receiver's descriptors
  uint16_t path_port = 0;          // 164: who_has: of the asker's datagrams (network_path.hpp)
  uint16_t reserved2 = 0;          // 166
  int32_t holder_thread = 0;       // 168: who_has, owner: a thread of the sender, by which it
  int32_t holder_fd = -1;          // 172: can be seen that this number is its end
  EndCounts counts;                // 176: who_has, owner: of the end that it is about
  uint64_t path_number = 0;        // 192: path, path_ok
  DiscoveryMessage datagram;       // 200: relay
  std::array<uint16_t, 8> nids{};  // 384: found; 0 behind the last
};
static_assert(sizeof(ControlMessage) == 400 && offsetof(ControlMessage, datagram) == 200);

}  // namespace sidestep::engine

#pragma once
/// What the managers of one host say to each other over abstract unix sockets (SOCK_SEQPACKET).
///
/// Every node listens on "@sidestep.<version>.<nid>". A node claims a NID by binding that name: the
/// kernel gives it to one process, and takes it back however that process ends. The bound names are
/// the registry of this host, and nothing has to be cleaned up. The directory tells which node to
/// ask about a stream (control/directory.hpp).
///
/// A message is a header and the payload of its type, no byte more or less.
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/base/address.hpp"
#include "engine/wire/discovery_message.hpp"
#include "engine/wire/endpoint_address.hpp"
#include "engine/wire/payload_types.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

enum class ControlType : uint16_t {
  hello = 1,    ///< first on a link, by the side that opened it
  who_has = 2,  ///< do you hold the other end of this TCP connection? With one descriptor where it
                ///< is needed: the asker's end_token().
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
  entered = 14,          ///< the connecting end of this TCP connection is there now
  find = 15,     ///< from a trusted user, to the node that hands out a directory: which nodes does
                 ///< it list as holders of this connecting end?
  found = 16,    ///< the answer
  path = 17,     ///< this number of yours has come this way (control/network_path.hpp)
  path_ok = 18,  ///< the answer, if that is right
};

/// The payloads. A message of a type has the payload of that name; not all of them say anything.
namespace control {

/// The node of another host on whose behalf the sender asks for the owner of a stream.
struct RemoteAsker {
  uint64_t incarnation = 0;      // 0: 0 if there is no such node: the asker is on this host
  std::array<uint8_t, 16> ip{};  // 8: of its host
  uint16_t nid = 0;              // 24
  uint16_t reserved[3] = {};     // 26
};
static_assert(sizeof(RemoteAsker) == 32);

/// Where others can see that the sender holds its end: at this number, through this thread.
struct HeldAt {
  int32_t thread = 0;  // 0
  int32_t fd = -1;     // 4
};

struct Hello {
  static constexpr auto kType = ControlType::hello;
  uint16_t nid = 0;  // 0: of the sender
};

struct WhoHas {
  static constexpr auto kType = ControlType::who_has;
  Tuple tuple;                // 0: as the asked node sees it
  EndCounts counts;           // 40: of the other end
  RemoteAsker asker;          // 56
  uint32_t query = 0;         // 88: number of the question
  uint32_t generation = 0;    // 92: of the stream that it is asked for
  HeldAt held_at;             // 96: the other end, if the sender holds it
  uint16_t path_port = 0;     // 104: of the asker's datagrams (control/network_path.hpp)
  uint16_t wants_token = 0;   // 106: the sender can't see the receiver's descriptors
  uint16_t reserved[2] = {};  // 108
};
static_assert(sizeof(WhoHas) == 112 && offsetof(WhoHas, query) == 88);

struct Owner {
  static constexpr auto kType = ControlType::owner;
  EndCounts counts;                // 0: of the end that was asked for
  uint64_t incarnation = 0;        // 16: of the sender
  uint32_t query = 0;              // 24: as in the question
  uint32_t generation = 0;         // 28: likewise
  uint32_t answer = 0;             // 32: OwnerAnswer; only `yes` gives the following a meaning
  uint32_t stream = 0;             // 36: the stream that was asked for
  uint32_t stream_generation = 0;  // 40
  HeldAt held_at;                  // 44
  uint32_t reserved = 0;           // 52
};
static_assert(sizeof(Owner) == 56 && offsetof(Owner, held_at) == 44);

struct Connect {
  static constexpr auto kType = ControlType::connect;
  EndpointAddress endpoint;   // 0
  uint16_t lane = 0;          // 48
  uint16_t reserved[3] = {};  // 50
};
static_assert(sizeof(Connect) == 56);

struct Accept {
  static constexpr auto kType = ControlType::accept;
  EndpointAddress endpoint;   // 0
  uint16_t lane = 0;          // 48
  uint16_t reserved[3] = {};  // 50
};
static_assert(sizeof(Accept) == 56);

struct Refuse {
  static constexpr auto kType = ControlType::refuse;
  uint16_t lane = 0;  // 0
};

struct Status {
  static constexpr auto kType = ControlType::status;
};

struct StatusReply {
  static constexpr auto kType = ControlType::status_reply;
};

struct Failed {
  static constexpr auto kType = ControlType::failed;
  uint16_t lane = 0;  // 0
};

struct Relay {
  static constexpr auto kType = ControlType::relay;
  DiscoveryMessage datagram;           // 0
  std::array<uint8_t, 16> ip{};        // 152: where it came from
  uint16_t port = 0;                   // 168: likewise; big-endian
  std::array<uint16_t, 3> reserved{};  // 170
};
static_assert(sizeof(Relay) == 176 && offsetof(Relay, ip) == 152);

struct Leave {
  static constexpr auto kType = ControlType::leave;
};

struct AskForDirectory {
  static constexpr auto kType = ControlType::directory;
};

struct DirectoryReply {
  static constexpr auto kType = ControlType::directory_reply;
};

struct Entered {
  static constexpr auto kType = ControlType::entered;
  Tuple tuple;  // 0: as the connecting end sees it
};

struct Find {
  static constexpr auto kType = ControlType::find;
  Tuple tuple;              // 0: as the connecting end sees it
  uint32_t query = 0;       // 40: number of the question
  uint32_t generation = 0;  // 44: of the stream that it is asked for
};
static_assert(sizeof(Find) == 48);

struct Found {
  static constexpr auto kType = ControlType::found;
  uint32_t query = 0;              // 0: as in the question
  uint32_t generation = 0;         // 4: likewise
  std::array<uint16_t, 8> nids{};  // 8: 0 after the last
};
static_assert(sizeof(Found) == 24);

struct Path {
  static constexpr auto kType = ControlType::path;
  uint64_t number = 0;             // 0
  std::array<uint8_t, 16> to{};    // 8: the address at which it has arrived
  std::array<uint8_t, 16> from{};  // 24: and the one from which it came
};
static_assert(sizeof(Path) == 40);

struct PathOk {
  static constexpr auto kType = ControlType::path_ok;
  Path path;  // 0: which one
};

using Payloads =
    PayloadTypes<Hello, WhoHas, Owner, Connect, Accept, Refuse, Status, StatusReply, Failed, Relay,
                 Leave, AskForDirectory, DirectoryReply, Entered, Find, Found, Path, PathOk>;

}  // namespace control

struct ControlHeader {
  static constexpr uint32_t kMagic = 0x50454453;  // "SDEP"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: ControlType
};
static_assert(sizeof(ControlHeader) == 8);

struct ControlMessage {
  ControlMessage() = default;
  template <Payload P>
  ControlMessage(const P& said) noexcept {  // NOLINT(google-explicit-constructor)
    header.type = static_cast<uint16_t>(P::kType);
    std::memcpy(payload.data(), &said, kPayloadSize<P>);
  }

  ControlType type() const noexcept { return static_cast<ControlType>(header.type); }
  /// The payload of a message that has this type.
  template <Payload P>
  P as() const noexcept {
    assert(type() == P::kType);
    P said;
    std::memcpy(static_cast<void*>(&said), payload.data(), kPayloadSize<P>);
    return said;
  }
  /// The bytes of a message of that type.
  static constexpr size_t size_of(uint16_t type) noexcept {
    const size_t size = control::Payloads::size_of(type);
    return size != control::Payloads::kUnknown ? sizeof(ControlHeader) + size : 0;
  }

  ControlHeader header;
  std::array<uint8_t, control::Payloads::kLargest> payload{};  // 8: as much of it as the type has
};
static_assert(sizeof(ControlMessage) == 184 && offsetof(ControlMessage, payload) == 8);

}  // namespace sidestep::engine

#pragma once
/// What the nodes of two hosts say to each other in datagrams: discovery, exchange and failures.
///
/// All datagrams have the same length: a header, the payload of its type, zeros, and a code. So an
/// answer is never longer than the question, and nobody can use a node to amplify a flood.
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "engine/base/address.hpp"
#include "engine/base/message_auth.hpp"
#include "engine/wire/endpoint_address.hpp"
#include "engine/wire/payload_types.hpp"
#include "engine/wire/stream_report.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

/// unproven: like later; the asker was not shown to hold the other end of the connection here.
enum class OwnerAnswer : uint32_t { no = 0, yes = 1, later = 2, unproven = 3 };

/// What the kernel has counted on one end of a connection: the other end has sent what was received
/// here, and it has received what was acknowledged here. Both counts only grow, so this holds
/// however late they are looked at. 0 if not known.
struct EndCounts {
  uint64_t received = 0;  // 0
  uint64_t acked = 0;     // 8
};

enum class DiscoveryType : uint16_t {
  who_has = 1,     ///< do you hold the other end of this TCP connection? `from` is who asks
  owner = 2,       ///< the answer; `from` is who holds it
  connect = 3,     ///< my endpoint; if both send one, the request of the lower incarnation counts
  accept = 4,      ///< the answer, with mine; sent again until `ready` comes
  ready = 5,       ///< both ends are joined: the acceptor may send
  refuse = 6,      ///< no connection this way
  gone = 7,        ///< no node of that incarnation is here
  failed = 8,      ///< our connection is unusable; one of several parts of the reports
  failed_ack = 9,  ///< that part has arrived
  leave = 10,      ///< the process of `from` ends
  ask_host = 11,   ///< is any node on this host?
  host_reply = 12  ///< yes, `from` is
};

struct DiscoveryHeader {
  static constexpr uint32_t kMagic = 0x32504453;  // "SDP2"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t type = 0;                              // 6: DiscoveryType
  /// 8: what an answer gives back: in questions about a stream number and nonce, in ask_host a
  /// nonce, and the attempt to connect in all that concerns a connection
  uint64_t question = 0;
  uint64_t from = 0;      // 16: incarnation of the node that this speaks for
  uint64_t to = 0;        // 24: incarnation of the node that it is for; 0: any on the host
  uint16_t from_nid = 0;  // 32
  uint16_t to_nid = 0;    // 34
  uint32_t reserved = 0;  // 36

  /// The header of an answer by the node that this is for.
  DiscoveryHeader of_answer() const noexcept {
    DiscoveryHeader answer;
    answer.question = question;
    answer.from = to;
    answer.from_nid = to_nid;
    answer.to = from;
    answer.to_nid = from_nid;
    return answer;
  }
};
static_assert(sizeof(DiscoveryHeader) == 40 && offsetof(DiscoveryHeader, from) == 16);

/// The payloads. A datagram of a type has the payload of that name; not all of them say anything.
namespace datagram {

struct WhoHas {
  static constexpr auto kType = DiscoveryType::who_has;
  Tuple tuple;              // 0: as the owner of the wanted end sees it
  EndCounts counts;         // 40: of the sender's end
  uint32_t generation = 0;  // 56: of the sender's stream
  uint32_t reserved = 0;    // 60
};
static_assert(sizeof(WhoHas) == 64);

struct Owner {
  static constexpr auto kType = DiscoveryType::owner;
  Tuple tuple;              // 0: as in the question
  EndCounts counts;         // 40: of the end that was asked for
  uint32_t answer = 0;      // 56: OwnerAnswer, not `unproven`; `yes` gives all but tuple a meaning
  uint32_t stream = 0;      // 60: the stream that was asked for
  uint32_t generation = 0;  // 64: of that stream
  uint32_t reserved = 0;    // 68
};
static_assert(sizeof(Owner) == 72);

struct Connect {
  static constexpr auto kType = DiscoveryType::connect;
  EndpointAddress endpoint;  // 0
  uint32_t number = 0;       // 48: of this attempt; each one of the sender's has a higher number
  uint32_t reserved = 0;     // 52
};
static_assert(sizeof(Connect) == 56);

struct Accept {
  static constexpr auto kType = DiscoveryType::accept;
  EndpointAddress endpoint;  // 0
};

struct Ready {
  static constexpr auto kType = DiscoveryType::ready;
};

struct Refuse {
  static constexpr auto kType = DiscoveryType::refuse;
};

struct Gone {
  static constexpr auto kType = DiscoveryType::gone;
};

struct Failed {
  static constexpr auto kType = DiscoveryType::failed;
  static constexpr size_t kMost = 2;
  uint32_t part = 0;                          // 0: number of the part
  uint32_t parts = 0;                         // 4: how many there are
  uint32_t count = 0;                         // 8: how many reports are in this one
  uint32_t reserved = 0;                      // 12
  std::array<StreamReport, kMost> reports{};  // 16: stream/recovery.hpp
};
static_assert(sizeof(Failed) == 80);

struct FailedAck {
  static constexpr auto kType = DiscoveryType::failed_ack;
  uint32_t part = 0;  // 0: number of the part
};

struct Leave {
  static constexpr auto kType = DiscoveryType::leave;
  uint32_t said_all = 0;  // 0: 1 if all that the process had to say has arrived
};

struct AskHost {
  static constexpr auto kType = DiscoveryType::ask_host;
  std::array<uint8_t, 16> ip{};  // 0: of the host, as the asker knows it
};

struct HostReply {
  static constexpr auto kType = DiscoveryType::host_reply;
  std::array<uint8_t, 16> ip{};  // 0: as in the question
};

using Payloads = PayloadTypes<WhoHas, Owner, Connect, Accept, Ready, Refuse, Gone, Failed,
                              FailedAck, Leave, AskHost, HostReply>;

}  // namespace datagram

/// A datagram between hosts (control/discovery.hpp). Little-endian.
struct DiscoveryMessage {
  DiscoveryMessage() = default;
  /// `said` is sent with a header that lacks only the type.
  template <Payload P>
  DiscoveryMessage(const DiscoveryHeader& start, const P& said) noexcept : header(start) {
    header.type = static_cast<uint16_t>(P::kType);
    std::memcpy(payload.data(), &said, kPayloadSize<P>);
  }

  DiscoveryType type() const noexcept { return static_cast<DiscoveryType>(header.type); }
  /// The payload of a datagram that has this type.
  template <Payload P>
  P as() const noexcept {
    assert(type() == P::kType);
    P said;
    std::memcpy(static_cast<void*>(&said), payload.data(), kPayloadSize<P>);
    return said;
  }

  DiscoveryHeader header;                                       // 0
  std::array<uint8_t, datagram::Payloads::kLargest> payload{};  // 40: zero behind the payload
  Digest mac{};  // 120: over all before it (control/cluster_key.hpp); 0 without a key
};
static_assert(sizeof(DiscoveryMessage) == 152 && offsetof(DiscoveryMessage, payload) == 40 &&
              offsetof(DiscoveryMessage, mac) == 120);
static_assert(std::has_unique_object_representations_v<DiscoveryMessage>);  // no gaps

}  // namespace sidestep::engine

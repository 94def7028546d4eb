#pragma once
/// UDP discovery and exchange: asks another host which of its nodes, if any, holds the other end of
/// a connection, and tells that node how to reach this one's queue pair.
///
/// Every node of a host that deals with other hosts, and the node that hands out the directory,
/// binds the one well-known port (SIDESTEP_DISCOVERY_PORT) with SO_REUSEPORT. The kernel gives each
/// datagram to one of them. That node answers for all nodes of the host, or passes the datagram on
/// to the node that it is for (ControlType::relay). No responder has to be elected or replaced:
/// when a process dies, the others already have the port. A process of another user finds the port
/// taken and tries again, so that it takes over when the last process of the first user is gone.
/// Every request goes to the well-known port and every answer comes from it, so that a firewall
/// rule can name it.
///
/// Requests leave from a second, unshared socket, so that answers come back to the asker. All
/// datagrams about a stream, and between nodes that have streams in common, leave from the address
/// of their end of it, whatever routing would choose. A node that asks from any other address than
/// that of the end gets no answer. Nor does a node that wants to connect without having been told
/// of a stream or having told of one.
/// Datagrams are lost, repeated and reordered. An answer counts only if it names an open question
/// and comes from the address that was asked; a repeated request gets the same answer again. Used
/// by the manager thread only.
///
/// Without a key anybody can send datagrams; the cost of those from unknown senders is bounded
/// (rate_limit.hpp). Whoever sees the datagrams of a host, or can hold its discovery port, can be
/// joined in its place.
///
/// With SIDESTEP_KEY_FILE every datagram proves that a host with the same key made it
/// (cluster_key.hpp); others are counted and dropped. The proof covers neither the addresses that a
/// datagram travels between nor its time, so whoever has seen a datagram can send it again, from
/// anywhere. What such a copy does:
///
///   who_has     If it comes from the asker's address, it is answered, to that address. If the same
///               addresses and ports have a new connection that is not decided yet, a copy from an
///               earlier life of its other end can leave that stream on the kernel.
///   owner       Nothing: it has the nonce of its question, and a question counts one answer.
///   connect     For the current attempt: the accept is sent once more. For an earlier one:
///               nothing, because a node numbers its attempts.
///   accept,     Nothing: they complete the attempt that they name, and no other.
///   ready
///   refuse,     For the current attempt: they end its connection, and its streams with
///   gone        ECONNRESET. Such a refuse exists only if a connect came twice and failed once. Any
///               host with the key sends a gone in answer to a copy of a connect or a failed that
///               was meant for another host.
///   failed,     Nothing: that part is already here, or already acknowledged.
///   failed_ack
///   leave       Nothing: that node has ended, and no other has its incarnation.
///   ask_host    It is answered, to where the copy came from: a node is on this host.
///   host_reply  If it comes from that host's address, the host counts as one that answers.
///
/// No copy joins a node to one without the key, nor a stream to the end of another: incarnations
/// and attempts are random, and a stream is named with its generation. The worst outcome,
/// ECONNRESET, is also within the power of anyone who sees the packets of the TCP connections and
/// can send such packets.
#include <netinet/in.h>

#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/base/counters.hpp"
#include "engine/control/cluster_key.hpp"
#include "engine/wire/discovery_message.hpp"

namespace sidestep::engine {

class Discovery {
 public:
  /// `refused` counts the datagrams without the right MAC.
  Discovery(uint16_t port, const ClusterKey& key, Counter& refused) noexcept
      : key_(key), refused_(refused), port_(port) {}
  /// Opens the sockets. Opens the one for requests only if this node `asks`; otherwise requests
  /// leave from the shared one. Without the well-known port this node asks but does not answer.
  /// With an unusable key nothing is opened, for good.
  void open(bool asks = true) noexcept;
  /// Tries again to bind the well-known port, if it is not held. True if this call has taken it.
  bool take_over() noexcept;
  void close() noexcept;

  /// True if other hosts may be asked and answered. Any thread.
  bool lets_talk() const noexcept { return key_.lets_talk(); }
  /// True if the reason why not is a missing key.
  bool lacks_key() const noexcept { return key_.state() == ClusterKey::State::missing; }
  /// True if each datagram proves that a host with the same key made it.
  bool has_key() const noexcept { return key_.state() == ClusterKey::State::usable; }
  int answering_fd() const noexcept { return answering_; }
  int asking_fd() const noexcept { return asking_; }

  using Ip = std::array<uint8_t, 16>;

  /// Sends a request to the well-known port of a host. It leaves from this host's address `own`, by
  /// which the other host knows it, or from any address if `own` is zero. A repeated request leaves
  /// from the other socket if there is one: at the other host it then reaches another node, in case
  /// the first has been stopped. False if the kernel refuses at once.
  bool ask(const Address& host, const Ip& own, const DiscoveryMessage& message,
           unsigned tries = 1) noexcept;
  /// Sends an answer to where its request came from. If it is lost, the asker asks again.
  void answer(const sockaddr_in6& to, const Ip& own, const DiscoveryMessage& message) noexcept;
  /// Receives one datagram from one of the two sockets. False if none is left, or if hundreds were
  /// dropped because they were malformed or lacked the right MAC.
  bool receive(int fd, DiscoveryMessage& message, sockaddr_in6& from);
  /// Checks what a datagram from `from` says, and who made it. Also used for a datagram that
  /// another node of this host passes on, because that node may have another key, or none.
  bool admit(const void* data, size_t size, const sockaddr_in6& from, DiscoveryMessage& message);

  /// Checks what a datagram says; `size` bytes at `data`.
  static bool parse(const void* data, size_t size, DiscoveryMessage& message) noexcept;

 private:
  bool send(int fd, const sockaddr_in6& to, const Ip& own, DiscoveryMessage message) const noexcept;

  ClusterKey key_;
  Counter& refused_;
  bool told_of_refusal_ = false;
  uint16_t port_;
  int answering_ = -1;
  int asking_ = -1;
};

}  // namespace sidestep::engine

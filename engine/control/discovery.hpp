#pragma once
/// UDP discovery and exchange: asking another host which of its nodes, if any, holds the other end
/// of a connection, and telling that node how this one's queue pair is reached.
///
/// Every node of a host that has to do with others, and the one that hands out the directory, binds
/// the one well-known port (SIDESTEP_DISCOVERY_PORT) with SO_REUSEPORT.
/// The kernel gives each datagram to one of them, and whichever it is answers for all nodes of the
/// host, or passes the datagram on to the node that it is for (ControlType::relay). There is no
/// responder to be elected and none to be replaced: when a process dies, the others have the port
/// already. A process of another user finds the port taken and tries again, so that it takes over
/// when the last process of the first user is gone. Every request goes to the well-known port and
/// every answer comes from it, which is what firewalls can be told.
///
/// Requests leave from a second, unshared socket, so that answers come back to the asker. All
/// datagrams about a stream, and between nodes that have streams in common, leave from the address
/// that their end of it has, whatever routing would choose. Who asks from another address than that
/// of the end has no answer, and who wants to be connected without having been told of a stream, or
/// having told of one, has none either.
/// Datagrams are lost, repeated and reordered: an answer counts only if it names a question that is
/// out and comes from the address that was asked; a request that comes again is answered again with
/// the same. Used by the manager thread only.
///
/// Without a key anybody can send datagrams, and what those cost is bounded that come from nobody
/// known (rate_limit.hpp). Whoever sees those of a host, or can hold its discovery port, can be
/// joined in its place.
///
/// With SIDESTEP_KEY_FILE every datagram proves that a host with the same key has made it
/// (cluster_key.hpp); others are counted and dropped. Neither the addresses that a datagram travels
/// between nor its time are part of the proof, so whoever has seen a datagram can send it again,
/// from anywhere. What such a copy does:
///
///   who_has     Under the address of the asker it is answered, to there. If the same addresses and
///               ports have a new connection, not decided yet, a copy from an earlier life of its
///               other end can leave that stream on the kernel.
///   owner       Nothing: it has the nonce of its question, which counts one answer.
///   connect     Of the attempt that stands: the accept is sent once more. Of an earlier one:
///               nothing, because a node numbers its attempts.
///   accept,     Nothing: they complete the attempt that they name, and no other.
///   ready
///   refuse,     Of the attempt that stands: they end its connection, and its streams with
///   gone        ECONNRESET. There is such a refuse only if a connect came twice, and failed once;
///               a gone can be had from any host with the key, for a copy of a connect or a failed
///               that was meant for another host.
///   failed,     Nothing: that part is here, or is acknowledged, already.
///   failed_ack
///   leave       Nothing: that node has ended, and no other has its incarnation.
///
/// No copy joins a node to one without the key, nor a stream to the end of another: incarnations
/// and attempts are random, and a stream is named with its generation. The worst, ECONNRESET, is
/// within the power of whoever sees the packets of the TCP connections and can send such packets.
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
  /// Opens the sockets, that for requests where this node `asks`: without it they leave from the
  /// other. Without the well-known port this node asks but does not answer. With an unusable key
  /// nothing is opened, for good.
  void open(bool asks = true) noexcept;
  /// Tries for the well-known port again, if it is not held. True when it has just been taken.
  bool take_over() noexcept;
  void close() noexcept;

  /// Other hosts may be asked and answered. Any thread.
  bool lets_talk() const noexcept { return key_.lets_talk(); }
  /// Why not, where it is so.
  bool lacks_key() const noexcept { return key_.state() == ClusterKey::State::missing; }
  /// Whether each datagram shows that a host with the same key has made it.
  bool has_key() const noexcept { return key_.state() == ClusterKey::State::usable; }
  int answering_fd() const noexcept { return answering_; }
  int asking_fd() const noexcept { return asking_; }

  using Ip = std::array<uint8_t, 16>;

  /// Sends a request to the well-known port of a host. It leaves from the address `own` of this
  /// host, by which the other one knows it, or from any where that is zero. A request that comes
  /// again leaves from another socket where there is one: at the other host it then reaches another
  /// node, if the first has been stopped. False when the kernel refuses at once.
  bool ask(const Address& host, const Ip& own, const DiscoveryMessage& message,
           unsigned tries = 1) noexcept;
  /// Sends an answer to where its request came from. One that is lost is asked for again.
  void answer(const sockaddr_in6& to, const Ip& own, const DiscoveryMessage& message) noexcept;
  /// One datagram from one of the two sockets; false when none is left, or hundreds were dropped
  /// that were malformed, or without the right MAC.
  bool receive(int fd, DiscoveryMessage& message, sockaddr_in6& from);
  /// Checks a datagram that came from `from`: what it says, and who has made it. Also for one that
  /// another node of this host passes on: its key may be another, or none.
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

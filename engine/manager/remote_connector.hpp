#pragma once
/// Connections to nodes on other hosts. The nodes exchange addresses by datagrams, which may be
/// lost, repeated and reordered.
///
///   initiator                            acceptor
///   connect(attempt, my endpoint)  ->    makes its end and joins it to the initiator's
///                                  <-    accept(attempt, its endpoint)
///   joins its end
///   ready(attempt)                 ->    from now on the acceptor may send first
///
/// A repeated connect is answered again with the same accept; a repeated accept is answered again
/// with ready. If both ends begin at once, the request of the lower incarnation counts and the
/// other is dropped.
///
/// The manager's thread makes all calls. Functions that allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/connection/connection.hpp"
#include "engine/device/half_open.hpp"
#include "engine/manager/connection_room.hpp"
#include "engine/manager/discovery_port.hpp"
#include "engine/manager/host_watch.hpp"
#include "engine/manager/remote_failures.hpp"
#include "engine/manager/remote_node.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"
#include "engine/stream/recovery.hpp"

namespace sidestep::engine {

class RemoteConnector {
 public:
  RemoteConnector(ThisNode& node, UndecidedStreams& undecided, ConnectionRoom& room,
                  DiscoveryPort& port, HostWatch& hosts) noexcept
      : node_(node), undecided_(undecided), room_(room), port_(port), hosts_(hosts) {}
  RemoteConnector(const RemoteConnector&) = delete;

  /// Makes this node deal with another, unless it already does; returns the number of that peer
  /// (PeerName). `ip`, `own`: the addresses of that host and of this one, as the ends of a
  /// connection between the two have them.
  uint32_t meet(uint64_t incarnation, uint16_t nid, const Discovery::Ip& ip,
                const Discovery::Ip& own);
  bool deals_with(uint64_t incarnation) const noexcept { return remotes_.contains(incarnation); }

  /// Binds the stream to the connection to that peer, which may have to be made first.
  void bind_when_connected(uint32_t peer, const StreamPair& pair);
  /// False if the connection is not in use between this node and one on another host.
  bool fail_connection(const Connection& connection, const char* why);
  /// Gives up all connections, when the engine of this process has ended.
  void lose_all(const char* why);
  /// Tells the peers that this process is ending.
  void take_leave(bool said_all);

  void on_connect(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_accept(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_ready(const DiscoveryMessage& message);
  /// The peer refuses to connect, or is gone.
  void on_end(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_leave(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_failed(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_failed_ack(const DiscoveryMessage& message);

  /// Sends again what has not been answered, and gives up what has not been for too long.
  void retry(uint64_t now);
  /// When to call that next; 0: not at all.
  uint64_t next_at() const noexcept;
  void forget_idle(uint64_t now);

 private:
  /// A node on another host, met because one of its streams ends here.
  struct Remote {
    Remote(const ThisNode& node, DiscoveryPort& port) noexcept : failures(node, port, peer) {}

    RemoteNode peer;
    std::unique_ptr<HalfOpen> half;  // our request is out
    Device* device = nullptr;
    uint64_t attempt = 0;         // names the request that is out or has been answered
    uint32_t number = 0;          // of our request: a node numbers all its requests, from 1
    uint32_t their_number = 0;    // the highest that has come: a lower one is an old copy
    uint32_t dropped_number = 0;  // of a request that came while ours, which counted, was out
    EndpointAddress answer;       // our answer to their request, in case it comes again
    sockaddr_in6 reply_to{};
    Connection* connection = nullptr;
    bool confirmed = false;  // the peer has joined its end: this end may send
    std::vector<StreamPair> waiting;
    unsigned tries = 0;
    uint64_t retry_at = 0;
    RemoteFailures failures;
    uint64_t idle_since = 0;  // since when nothing is going on; 0: something is
  };

  DiscoveryMessage message_to(const Remote& remote, DiscoveryType type) const noexcept;
  void connect_to(Remote& remote);
  void send_connect(Remote& remote);
  void take_into_use(Remote& remote, std::unique_ptr<Endpoint> endpoint);
  void confirm(Remote& remote);
  void bind_waiting(Remote& remote);
  void give_up(Remote& remote, Reason reason, Until until = Until::ever);
  void lose(Remote& remote, const char* why, PeerProcess peer);
  void fail(Remote& remote, const char* why);

  ThisNode& node_;
  UndecidedStreams& undecided_;
  ConnectionRoom& room_;
  DiscoveryPort& port_;
  HostWatch& hosts_;
  std::unordered_map<uint64_t, Remote> remotes_;  // by incarnation
  std::map<uint32_t, uint64_t> remote_by_number_;
  uint32_t last_remote_ = 0;
  uint32_t last_connect_ = 0;
  uint64_t forget_at_ = 0;  // when to look for idle remotes next
};

}  // namespace sidestep::engine

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
/// What this node does about a connection to each of the others:
///
///   state       it has
///   idle        nothing
///   connecting  its half; the request is out, and is sent again until it is answered
///   accepting   a connection that it may receive from; the answer is sent again until it is known
///               that the peer has joined its end
///   joined      a connection that it may send over
///
///   event                                        from                   to          sends
///   a stream is to be bound                      idle                   connecting  connect
///   the same, but there is no device or room     idle                   idle
///   accept of the request                        connecting             joined      ready
///   the same, but the ends can't be joined       connecting             idle        refuse
///   accept again                                 accepting, joined      as it was   ready
///   a new connect, the lower incarnation's       any                    accepting   accept
///   a new connect, the higher incarnation's      idle, accepting,       accepting   accept
///                                                joined
///                                                connecting             connecting
///   the same two, but the ends can't be joined   where they lead on     idle        refuse
///   connect again                                accepting, joined      as it was   accept
///                                                idle, connecting       as it was   refuse
///   ready, or something comes over it            accepting              joined
///   a wait is over                               connecting             connecting  connect
///                                                accepting              accepting   accept
///   the last wait is over                        connecting, accepting  idle
///   refuse, gone                                 connecting, accepting  idle
///   leave                                        any                    idle
///   the connection fails here or at the peer     accepting, joined      idle        failed
///   the engine of this process ends              accepting, joined      idle
///
/// All these messages but leave name the attempt; those that name another change nothing. A
/// connection is also failed by a new connect and by the last wait. One that has failed is no
/// longer this class's concern: RemoteFailures has it.
///
/// Streams wait for joined. When an attempt comes to nothing, they are left to the kernel. When a
/// connection fails while it is accepting, they wait for the next attempt of either node.
///
/// The manager's thread makes all calls. The connections belong to Progress; what is kept here
/// points to those that are in use. Functions that allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/connection/connection.hpp"
#include "engine/device/device.hpp"
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
  enum class State { idle, connecting, accepting, joined };

  /// A node on another host, met because one of its streams ends here.
  struct Remote {
    Remote(const ThisNode& node, DiscoveryPort& port) noexcept : failures(node, port, peer) {}

    /// Lets go of what the state had.
    void become_idle() noexcept;
    void become_accepting(Connection& made) noexcept;
    void become_joined(Connection& used) noexcept;
    /// Asserts that it has what the state says, and nothing else.
    void check() const noexcept;
    bool is_connected() const noexcept {
      return state == State::accepting || state == State::joined;
    }

    RemoteNode peer;
    State state = State::idle;
    std::unique_ptr<HalfOpen> half;    // connecting
    Device* device = nullptr;          // connecting: on which that half is
    Connection* connection = nullptr;  // accepting, joined
    unsigned tries = 0;                // connecting, accepting: how often it was sent
    uint64_t retry_at = 0;             // connecting, accepting: when it is sent again
    uint64_t attempt = 0;              // names the request that is out or has been answered
    uint32_t number = 0;               // of our request: a node numbers all its requests, from 1
    uint32_t their_number = 0;         // the highest that has come: a lower one is an old copy
    uint32_t dropped_number = 0;       // of a request that came while ours, which counted, was out
    EndpointAddress answer;            // our answer to their request, in case it comes again
    sockaddr_in6 reply_to{};           // where that goes
    std::vector<StreamPair> waiting;
    RemoteFailures failures;
    uint64_t idle_since = 0;  // since when nothing is going on; 0: something is
  };

  /// Null if there is none.
  Remote* find(uint64_t incarnation) noexcept;
  /// Likewise, and if it is not on the host that `from` names.
  Remote* find(uint64_t incarnation, const sockaddr_in6& from) noexcept;
  /// The header of a message about the present attempt.
  DiscoveryHeader header_to(const Remote& remote) const noexcept;
  void connect_to(Remote& remote);
  void send_connect(Remote& remote);
  /// Makes this end and joins it to the one that the peer offers. False: that is not possible, and
  /// the peer has been told so.
  bool accept(Remote& remote, const EndpointAddress& offered, const sockaddr_in6& from);
  void send_accept(Remote& remote);
  /// Makes a connection of an endpoint that is joined.
  Connection& take_into_use(const Remote& remote, Device& device,
                            std::unique_ptr<Endpoint> endpoint);
  void bind_waiting(Remote& remote);
  /// Ends the attempt, and leaves the streams that wait to the kernel.
  void give_up(Remote& remote, Reason reason, Until until = Until::ever);
  /// Ends the connection: nothing can be agreed with the peer about its streams.
  void lose(Remote& remote, const char* why, PeerProcess peer);
  /// Ends the connection, and agrees with the peer, which lives, about its streams.
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

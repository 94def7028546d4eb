#pragma once
/// Connections to the nodes of this host, made over links: how they begin, how they fail, and which
/// streams wait for them.
///
/// The manager's thread makes all calls. Halves of connections belong to this class until both ends
/// are joined; connections belong to Progress. Functions that allocate may throw std::bad_alloc.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/manager/connection_room.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"

namespace sidestep::engine {

class LocalConnector {
 public:
  LocalConnector(const ThisNode& node, Links& links, UndecidedStreams& undecided,
                 ConnectionRoom& room) noexcept
      : node_(node), links_(links), undecided_(undecided), room_(room) {}
  LocalConnector(const LocalConnector&) = delete;

  /// Binds the stream to a connection to that node, which may have to be made first. The node may
  /// be this one.
  void bind_when_connected(uint16_t nid, const StreamPair& pair);
  void fail_connection(Connection& connection, const char* why);
  /// Tells the peers that this process owes them nothing, where the device does not.
  void take_leave();

  void on_connect(Link& link, Received& received);
  void on_accept(Link& link, Received& received);
  void on_refuse(const Link& link, uint16_t lane);
  void on_failed(Link& link, const Received& received);
  void on_link_end(const Link& link, const char* why, PeerProcess peer);

 private:
  /// A connection that is being made, and the streams that wait for it.
  struct Pending {
    std::unique_ptr<HalfOpen> half;
    Device* device = nullptr;
    int link = -1;
    std::vector<StreamPair> streams;
  };

  void connect_to(uint16_t nid, uint16_t lane);
  void connect_to_self(Device& device);
  void give_up(uint16_t nid, uint16_t lane, Reason reason, Until until = Until::ever);
  Connection* establish(Link& link, Device& device, HalfOpen& half, uint16_t lane,
                        const EndpointAddress& address, Received& received);
  void refuse(Link& link, uint16_t lane);
  void bind_waiting(uint16_t nid, Connection& connection);
  /// Binds the stream to the connection of its lane, which may have to be made first. `connection`:
  /// any connection to the same node.
  void bind_to(uint16_t nid, Connection& connection, const StreamPair& pair);
  bool send_failed(Link& link, uint32_t lane, std::span<const StreamReport> reports);
  /// True if the link's first lane has a doorbell, which serves all lanes.
  static bool has_doorbell(const Link& link) noexcept;

  const ThisNode& node_;
  Links& links_;
  UndecidedStreams& undecided_;
  ConnectionRoom& room_;
  std::map<std::pair<uint16_t, uint16_t>, Pending> pending_;  // by NID and lane
};

}  // namespace sidestep::engine

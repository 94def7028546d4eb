#pragma once
/// Room for new connections: if need be, a connection that is idle makes way for another
/// (SIDESTEP_CONNECTIONS). The manager's thread makes all calls. It owns nothing.
#include <memory>

#include "engine/device/half_open.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

class Connection;

/// Knows how connections fail, inside a host and between hosts.
class ConnectionFailer {
 public:
  /// Gives up a connection whose peer may live; its streams move down.
  virtual void fail_connection(Connection& connection, const char* why) = 0;

 protected:
  ~ConnectionFailer() = default;
};

class ConnectionRoom {
 public:
  ConnectionRoom(const ThisNode& node, ConnectionFailer& failer) noexcept
      : node_(node), failer_(failer) {}
  ConnectionRoom(const ConnectionRoom&) = delete;

  /// Begins one half of a new connection if there is room for it. Null: not now; an idle connection
  /// then makes way if its memory may be what is missing.
  std::unique_ptr<HalfOpen> begin_half(Device& device);

 private:
  /// Makes room for another connection, if need be in place of an idle one.
  bool make(const Device& device);
  void make_way(Connection& connection, const char* why);

  const ThisNode& node_;
  ConnectionFailer& failer_;
};

}  // namespace sidestep::engine

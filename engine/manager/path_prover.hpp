#pragma once
/// Proves the path between this node and others in other network namespaces of this host, by
/// datagrams and over links (control/network_path.hpp).
///
/// The manager's thread makes all calls. The socket for those datagrams belongs to this class.
/// Functions that allocate may throw std::bad_alloc.
#include <cstdint>

#include "engine/control/network_path.hpp"
#include "engine/control/rate_limit.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

class PathProver {
 public:
  /// `limit`: of the datagrams that prove nothing.
  PathProver(const ThisNode& node, Links& links, RateLimit& limit) noexcept
      : node_(node), links_(links), limit_(limit) {}
  PathProver(const PathProver&) = delete;

  /// Returns the port at which datagrams from other network namespaces of this host arrive, or 0 if
  /// there is no socket.
  uint16_t open_port();
  /// The socket of that port; negative while there is none.
  int fd() const noexcept { return paths_.fd(); }
  void read();

  /// True if the path to the peer of this link is proven. If not, begins to prove it, provided that
  /// `port`, that of the peer, is not 0. `tuple`: the connection as the peer's end sees it.
  bool is_proven(const Link& link, const Tuple& tuple, uint16_t port);
  /// Called when the link to a node is gone: another process may get this NID next.
  void forget(uint16_t nid) { paths_.forget(nid); }

  void on_path(Link& link, const control::Path& path);
  void on_path_ok(const Link& link, const control::PathOk& answer);

 private:
  const ThisNode& node_;
  Links& links_;
  RateLimit& limit_;
  NetworkPaths paths_;
};

}  // namespace sidestep::engine

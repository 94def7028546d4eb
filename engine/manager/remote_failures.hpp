#pragma once
/// Connections to one node on another host that have failed while both nodes live. Each end sends
/// the other its reports (stream/recovery.hpp) in parts of two, and repeats each part until it is
/// acknowledged. The streams that both ends have then go on over the anchors. The link may be down
/// for a while, as TCP would tolerate: the streams end with an error only after two minutes, or
/// when a peer answers that the node is gone.
///
/// The manager's thread makes all calls. The connections belong to Progress. Functions that
/// allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/manager/discovery_port.hpp"
#include "engine/manager/remote_node.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/stream/recovery.hpp"

namespace sidestep::engine {

class RemoteFailures {
 public:
  RemoteFailures(const ThisNode& node, DiscoveryPort& port, const RemoteNode& peer) noexcept
      : node_(node), port_(port), peer_(peer) {}
  RemoteFailures(const RemoteFailures&) = delete;

  /// Begins the exchange about a connection, which was made by this attempt.
  void add(Connection& connection, uint64_t attempt, const char* why);
  /// True if no exchange is under way.
  bool empty() const noexcept { return failures_.empty(); }
  void on_failed(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_failed_ack(const DiscoveryMessage& message);
  void retry(uint64_t now);
  /// When to call that next; 0: not at all.
  uint64_t next_at() const noexcept;
  /// Ends the exchange about this attempt. Streams that have not been moved or ended yet are lost.
  void end(uint64_t attempt, const char* why, PeerProcess peer);
  void end_all(const char* why, PeerProcess peer);

 private:
  /// A connection that has failed; the reports of both ends are under way.
  struct Failure {
    uint64_t attempt = 0;
    Connection* connection = nullptr;  // null: its streams have been moved or ended
    std::vector<StreamReport> ours;
    std::vector<bool> acknowledged;  // by part
    std::map<uint32_t, std::vector<StreamReport>> theirs;
    bool all_acknowledged() const noexcept;
    uint32_t batch_end = 0;  // all parts before it have been sent
    unsigned tries = 0;      // of this batch
    uint64_t retry_at = 0;
    uint64_t give_up_at = 0;
  };

  void send(Failure& failure);

  const ThisNode& node_;
  DiscoveryPort& port_;
  const RemoteNode& peer_;
  std::vector<Failure> failures_;   // their streams wait to be moved down
  std::vector<uint64_t> finished_;  // the last few that are over, by attempt
};

}  // namespace sidestep::engine

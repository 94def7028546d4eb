#pragma once
/// What all parts of the manager know of the node that they work for: its names, its settings, and
/// the parts of it that other threads use as well. It decides nothing.
///
/// The manager's thread uses it; what it refers to says itself which threads may. All of that
/// belongs to the node and outlives the manager.
#include <sys/epoll.h>

#include <cstdint>

#include "config/config.hpp"
#include "config/trust.hpp"
#include "engine/base/own_addresses.hpp"
#include "engine/control/node_names.hpp"

namespace sidestep::engine {

class Device;
class ManagerJobs;
class NodeStreams;
class Progress;

struct ThisNode {
  ThisNode(const config::Config& config_of_node, ManagerJobs& jobs_of_node,
           Progress& progress_of_node, NodeStreams& streams_of_node)
      : config(config_of_node),
        jobs(jobs_of_node),
        progress(progress_of_node),
        streams(streams_of_node),
        names(config_of_node.directory) {}
  ThisNode(const ThisNode&) = delete;

  /// Reads SIDESTEP_TRUST.
  void read_trust();
  /// Makes the manager's thread wait for `events` of this descriptor. `operation`: of epoll_ctl(2).
  void watch(int fd, uint32_t events, int operation = EPOLL_CTL_ADD) const noexcept;
  /// True if both ends of such a connection are on this host, so that no other host is involved.
  bool has_both_ends(const Tuple& tuple);
  /// Returns the device that joins this node to other hosts, opened on first use; null if there is
  /// none.
  Device* device_for_others() noexcept;

  const config::Config& config;
  ManagerJobs& jobs;
  Progress& progress;
  NodeStreams& streams;
  const NodeNames names;
  config::Trust trust;
  OwnAddresses own_addresses;
  uint16_t nid = 0;
  uint64_t incarnation = 0;  ///< a name that no other node has, on any host, at any time
  int epoll_fd = -1;         ///< what the manager's thread waits for
};

}  // namespace sidestep::engine

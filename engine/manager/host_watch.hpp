#pragma once
/// Whether nodes answer on other hosts: those of SIDESTEP_NODES, which are asked, and those where
/// streams lead.
///
/// This node asks each host of SIDESTEP_NODES, again and again, whether a node answers there.
/// Whichever node holds the discovery port there does.
///
/// This is good for three things. When the first host answers, this node opens its device, so that
/// the first stream to another host does not wait for that. Streams to a host that does not answer
/// are decided at once. Streams to a host that answers again do not wait until its silence is
/// forgotten.
///
/// The manager's thread makes all calls. The thread that looks up the names of hosts belongs to
/// KnownHosts, and touches nothing here. Functions that allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <cstdint>

#include "engine/control/discovery.hpp"
#include "engine/control/known_hosts.hpp"
#include "engine/control/silent_hosts.hpp"
#include "engine/manager/discovery_port.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

class HostWatch {
 public:
  HostWatch(ThisNode& node, DiscoveryPort& port) : node_(node), port_(port) {}
  HostWatch(const HostWatch&) = delete;

  void start();
  /// Asks the hosts that are due.
  void ask(uint64_t now);
  /// When a host is due; 0: never.
  uint64_t next_at() const noexcept { return hosts_.next_at(); }
  /// Called when something there has gone away: makes the host due at once.
  void ask_soon(const Discovery::Ip& host, uint64_t now) { hosts_.ask_soon(host, now); }

  void on_question(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_answer(const DiscoveryMessage& message, const sockaddr_in6& from);

  /// True if nobody has answered there lately: streams to that host stay on the kernel.
  bool is_silent(const Discovery::Ip& host, uint64_t now) const noexcept {
    return silent_hosts_.contains(host, now);
  }
  /// Called when no node of that host has answered to a question about a stream.
  void note_silence(const Discovery::Ip& host, uint64_t now);

 private:
  ThisNode& node_;
  DiscoveryPort& port_;
  KnownHosts hosts_;
  SilentHosts silent_hosts_;
  uint64_t question_ = 0;  // names all questions about hosts
};

}  // namespace sidestep::engine

#pragma once
/// The datagrams between this node and those on other hosts: the sockets (control/discovery.hpp)
/// are opened when they are needed, datagrams for other nodes of this host are passed on to them,
/// and those of strangers are limited. What a datagram means is up to its owner.
///
/// The manager's thread makes all calls, except lets_talk(). The sockets belong to this class.
/// Functions that allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <cstdint>

#include "engine/control/discovery.hpp"
#include "engine/control/rate_limit.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

/// Gets the datagrams that are for this node.
class DatagramOwner {
 public:
  virtual void on_datagram(const DiscoveryMessage& message, const sockaddr_in6& from) = 0;
  /// True if this node deals with the node that has this incarnation.
  virtual bool deals_with(uint64_t incarnation) const noexcept = 0;

 protected:
  ~DatagramOwner() = default;
};

class DiscoveryPort {
 public:
  /// `limit`: of the datagrams that prove nothing.
  DiscoveryPort(const ThisNode& node, Links& links, RateLimit& limit,
                DatagramOwner& owner) noexcept;
  DiscoveryPort(const DiscoveryPort&) = delete;

  /// True if other hosts may be asked and answered. Any thread.
  bool lets_talk() const noexcept { return discovery_.lets_talk(); }
  /// True if the reason why not is a missing key.
  bool lacks_key() const noexcept { return discovery_.lacks_key(); }
  /// From now on, this node answers other hosts and, if `asks`, asks them.
  void open(bool asks) noexcept;
  void close() noexcept { discovery_.close(); }
  /// Tries to take the port of this host if another user has it.
  void take_over(uint64_t now) noexcept;
  /// When to call that next; 0: not at all.
  uint64_t next_at() const noexcept { return take_over_at_; }

  /// True if this is one of its sockets.
  bool has(int fd) const noexcept {
    return fd == discovery_.answering_fd() || fd == discovery_.asking_fd();
  }
  void read(int fd);
  /// Takes a datagram that another node of this host has passed on.
  void on_relay(const Link& link, const control::Relay& relayed);
  /// As in Discovery.
  void ask(const Address& host, const Discovery::Ip& own, const DiscoveryMessage& message,
           unsigned tries = 1) noexcept {
    discovery_.ask(host, own, message, tries);
  }
  void answer(const sockaddr_in6& to, const Discovery::Ip& own,
              const DiscoveryMessage& message) noexcept {
    discovery_.answer(to, own, message);
  }

 private:
  void watch() noexcept;
  /// True if there are too many datagrams that prove nothing and come from unknown nodes. Counts
  /// the datagram then.
  bool is_too_much(const DiscoveryMessage& message, const sockaddr_in6& from);
  void deliver(const DiscoveryMessage& message, const sockaddr_in6& from);
  void relay(const DiscoveryMessage& message, const sockaddr_in6& from);

  const ThisNode& node_;
  Links& links_;
  RateLimit& limit_;
  DatagramOwner& owner_;
  Discovery discovery_;
  bool asks_ = false;
  bool answers_ = false;
  bool told_of_drop_ = false;
  uint64_t take_over_at_ = 0;
};

}  // namespace sidestep::engine

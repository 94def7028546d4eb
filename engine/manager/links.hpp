#pragma once
/// The links to nodes of this host: how they are opened, read, written and closed.
///
/// A link is a connected unix socket that carries control messages (wire/control_message.hpp). It
/// stays open as long as both nodes live; its hang-up is how this node learns that the peer has
/// died. What a message means, and what ends with a link, is up to the owner of the links.
///
/// The manager's thread makes all calls. The links and their sockets belong to this class; the
/// connections that were made over them belong to Progress. A reference to a link is good until the
/// link is closed. Functions that allocate may throw std::bad_alloc.
#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>

#include "engine/base/private_fd.hpp"
#include "engine/connection/connection.hpp"
#include "engine/control/control_link.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/stream/recovery.hpp"

namespace sidestep::engine {

struct Link {
  /// A message for which there was no room yet.
  struct Unsent {
    ControlMessage message;
    PrivateFd fds[2];
  };

  int fd = -1;
  uint16_t nid = 0;  ///< 0: the other side has not said hello yet
  int pid = -1;
  uid_t uid = 0;
  bool is_own = false;                            ///< the peer belongs to this user
  std::array<Connection*, kLanes> connections{};  ///< made over this link: they die with it
  bool said_all = false;                          ///< the peer has taken leave and owes nothing
  bool is_doubted = false;                        ///< already logged that the peer proves nothing
  bool is_for_directory = false;                  ///< opened to ask for the directory
  std::deque<Unsent> unsent;  ///< messages to a node that is too busy, or is stopped
  size_t unsent_fds = 0;      ///< how many of those messages have descriptors
};

/// Whoever has links is told of these things. Both calls may use the links, and close some.
class LinkOwner {
 public:
  /// A message has arrived. What is left of its descriptors afterwards is closed.
  virtual void on_message(Link& link, Received& received) = 0;
  /// The link has been closed, and is no longer among the links. `was_named`: messages to its node
  /// went over it, so that answers to them will not come.
  virtual void on_link_end(const Link& link, const char* why, PeerProcess peer, bool was_named) = 0;

 protected:
  ~LinkOwner() = default;
};

class Links {
 public:
  Links(const ThisNode& node, LinkOwner& owner) noexcept : node_(node), owner_(owner) {}
  Links(const Links&) = delete;

  // --- being linked to

  /// Listens under the name of that NID. Returns the listening descriptor, or -errno.
  int listen_as(uint16_t nid) noexcept { return listen_fd_ = node_.names.listen_as(nid); }
  int listen_fd() const noexcept { return listen_fd_; }
  /// Gives the name up.
  void stop_listening() noexcept;
  /// Accepts all links that wait at `listen_fd`, if that is a descriptor. `is_for_directory`: they
  /// are opened to ask for the directory.
  void accept(int listen_fd, bool is_for_directory);
  /// True if a link may be waiting because no descriptor was free for it. Asked before accept(),
  /// for all listeners at once.
  bool takes_up_accepting(uint64_t now) noexcept;
  /// When that has to be asked next; 0: nothing waits.
  uint64_t next_at() const noexcept { return accept_at_; }
  /// Checks the NID that a link's peer claims against the owner of that name.
  void on_hello(Link& link, uint16_t nid);

  // --- the links

  /// Adds a link that is already connected.
  Link& add(int fd, uint16_t nid, const LinkPeer& peer);
  /// Null on failure, with the negated errno: -EAGAIN if the node is too busy, one of those below
  /// if this process lacks something; otherwise nobody who may be linked to has that NID.
  Link* to(uint16_t nid, int& error);
  static bool is_out_of_resources(int error) noexcept;
  /// Null if there is no such link.
  Link* find(int fd) noexcept;
  Link& at(int fd) { return links_.at(fd); }
  std::unordered_map<int, Link>& all() noexcept { return links_; }
  void close(int fd, const char* why, bool ended = false);
  void close_all(const char* why);

  // --- messages

  /// Like send_message(), but a message for which there is no room waits for room.
  int send(Link& link, const ControlMessage& message, int fd0 = -1, int fd1 = -1);
  /// Reads from the links among those descriptors, except those of nodes.
  void read(const epoll_event& event);
  /// Reads from the links of nodes, a different one first each time, until that takes long.
  void read_nodes(std::span<const epoll_event> events);

 private:
  /// Keeps one process from using up the descriptors of another.
  bool has_many(int pid) const noexcept;
  bool is_to_node(int fd) const noexcept;
  void watch(const Link& link, int operation) const noexcept;
  void send_unsent(int fd);
  /// Reads messages until none is left, or until one was read and the time `limit` has come.
  void read(int fd, uint32_t events, uint64_t limit);

  const ThisNode& node_;
  LinkOwner& owner_;
  int listen_fd_ = -1;
  uint64_t accept_at_ = 0;  // 0: no link waits for a descriptor
  std::unordered_map<int, Link> links_;
  std::map<uint16_t, int> link_by_nid_;
  size_t first_read_ = 0;  // which of the ready links comes first: a different one each time
};

}  // namespace sidestep::engine

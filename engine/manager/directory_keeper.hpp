#pragma once
/// The directory of this user's nodes: who makes it, and how the others get it
/// (control/directory.hpp).
///
/// One node hands it out: the first to bind the name for that. When that node is gone, another
/// takes the name, and the file lives on because all nodes have it. A newcomer, which has none, may
/// be faster. So a node that has just bound the name and has no directory first asks the nodes that
/// it finds whether they have one.
///
/// The manager's thread makes all calls. The directories belong to this class, and live as long as
/// it: other threads look at the one in use, which NodeStreams points to. Functions that allocate
/// may throw std::bad_alloc.
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/control/directory.hpp"
#include "engine/manager/discovery_port.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/this_node.hpp"

namespace sidestep::engine {

/// Whoever has something in the directory is told of a new one.
class DirectoryUser {
 public:
  /// Called before anybody in this process finds the directory.
  virtual void enter_into(Directory& directory) = 0;

 protected:
  ~DirectoryUser() = default;
};

class DirectoryKeeper {
 public:
  DirectoryKeeper(const ThisNode& node, Links& links, DiscoveryPort& port,
                  DirectoryUser& user) noexcept
      : node_(node), links_(links), port_(port), user_(user) {}
  DirectoryKeeper(const DirectoryKeeper&) = delete;

  /// Makes sure that a directory exists, that some node hands it out, and that all nodes have the
  /// same one. Removes from it what nodes have left that no longer exist.
  void look_after(uint64_t now);
  /// When to call that next.
  uint64_t next_at() const noexcept;
  /// True if there is no directory because the node that was asked for it has not answered: streams
  /// are then looked for at all nodes.
  bool asks_everybody() const noexcept { return asks_everybody_; }

  /// Returns the nodes, of whatever user, that exist and have not joined this node's directory yet.
  /// There has to be one.
  std::vector<uint16_t> nodes_that_have_not_joined() const;

  /// Where nodes open links to ask for the directory; negative while this node does not hand it
  /// out.
  int listen_fd() const noexcept { return listen_fd_; }
  /// Hands it out no longer.
  void stop_listening() noexcept;

  /// Answers a node that asks for the directory.
  void answer(Link& link);
  void on_reply(Link& link, Received& received);
  void on_link_end(const Link& link);

 private:
  bool take_seat(unsigned seat);
  void ask(uint64_t now);
  void ask_nodes();
  void seek_over(int fd);
  void end_seeking();
  void make();
  void use(std::unique_ptr<Directory> directory);
  void sweep(uint64_t now);

  const ThisNode& node_;
  Links& links_;
  DiscoveryPort& port_;
  DirectoryUser& user_;
  // Never freed: other threads may still be looking at one that was used before.
  std::vector<std::unique_ptr<Directory>> directories_;
  int listen_fd_ = -1;  // valid while this node hands the directory out
  unsigned seat_ = 0;
  int holder_link_ = -1;  // over which the node that hands it out was asked
  uint64_t look_at_ = 1;  // when to look after it
  bool looked_after_ = false;
  bool asks_everybody_ = false;
  uint64_t beats_seen_ = 0;
  unsigned silent_looks_ = 0;  // looks that found the same number of beats
  uint64_t sweep_at_ = 0;      // sweep no earlier
  std::vector<int> seeking_;   // links over which this node asked for it
  std::vector<int> wanted_;    // links on which peers asked for it before it was there
};

}  // namespace sidestep::engine

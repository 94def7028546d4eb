#pragma once
/// The names of the unix sockets (unix(7)) under which the nodes of a host find each other.
///
/// Usually they are abstract names, which the kernel takes back when a process ends, and which
/// belong to a network namespace. If the processes of several namespaces (containers) have to find
/// each other, the names are files in a folder that all of them see (SIDESTEP_DIRECTORY). Such a
/// name appears only when its socket already listens. A name that a killed process has left behind
/// is recognized by the fact that nobody listens there any more.
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sidestep::engine {

/// A plain value. All users of a network namespace, or of a folder, share the NIDs, so that users
/// who trust each other can tell their nodes apart. Any thread.
class NodeNames {
 public:
  static constexpr unsigned kDirectorySeats = 4;

  NodeNames() noexcept = default;
  /// `folder`: absolute, and short enough that a name in it fits into a socket address (the limit
  /// of SIDESTEP_DIRECTORY); empty: abstract names.
  explicit NodeNames(std::string folder) noexcept : folder_(std::move(folder)) {}

  bool are_files() const noexcept { return !folder_.empty(); }

  /// Returns a listening socket under a node's name, or -errno (EADDRINUSE: the NID is taken).
  int listen_as(uint16_t nid) const noexcept;
  /// The same for the node that hands out this user's directory. There are a few such names,
  /// because a stranger can take one: the first that belongs to the user counts.
  int listen_for_directory(unsigned seat) const noexcept;
  /// Returns a connected, non-blocking socket to a node, or -errno.
  int open_link(uint16_t nid) const noexcept;
  int open_link_to_directory(uid_t user, unsigned seat) const noexcept;

  /// Returns the NIDs of all users' nodes, ascending. Nullopt: no descriptor was free to read them.
  std::optional<std::vector<uint16_t>> list() const;
  /// Removes the files of this user's names that nobody has any more.
  void sweep() const noexcept;
  /// Removes a name that this process has; called before it closes the socket.
  void take_away(uint16_t nid) const noexcept;
  void take_away_directory(unsigned seat) const noexcept;

  /// The NID in the name of a file; 0: the name is not a node's.
  static uint16_t nid_of_file(const std::string& name) noexcept;
  /// The NIDs in the text of /proc/net/unix.
  static std::vector<uint16_t> parse(const std::string& text);

 private:
  struct Name {
    char text[96];  // without the folder, or the 0 of an abstract name
  };
  static Name of_node(uint16_t nid) noexcept;
  static Name of_directory(uid_t user, unsigned seat) noexcept;
  int claim(const Name& name) const noexcept;
  int listen_at(const Name& name) const noexcept;
  int open_at(const Name& name) const noexcept;
  int list_files(std::vector<std::string>& names) const;

  std::string folder_;
};

}  // namespace sidestep::engine

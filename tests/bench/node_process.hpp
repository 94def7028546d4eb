#pragma once
/// A node as the coordinator sees it: a child process that runs this program in another role.
#include <sys/types.h>

#include <memory>

#include "tests/bench/message_pipe.hpp"
#include "tests/bench/options.hpp"

namespace sidestep::bench {

/// The first argument of a process that is a node.
inline constexpr const char* kNodeRole = "--as-node";

class NodeProcess {
 public:
  /// Starts the node. Throws Failure.
  NodeProcess(unsigned number, const Options& options);
  /// Kills the node unless it has ended.
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;

  unsigned number() const noexcept { return number_; }
  void send(const nlohmann::json& message);
  /// Returns the node's next message. Throws Failure with what the node says went wrong, or with
  /// how it died.
  nlohmann::json receive(double seconds);
  /// Waits until the node exits by itself. Throws Failure if it does not, or does not succeed.
  void join(double seconds);

 private:
  /// Waits for at most `seconds` until the node has ended. Returns true if it has.
  bool reap(double seconds);
  [[noreturn]] void fail(const char* how);

  unsigned number_;
  pid_t pid_ = -1;
  int status_ = 0;
  int to_node_ = -1;
  int from_node_ = -1;
  std::unique_ptr<MessagePipe> pipe_;
};

}  // namespace sidestep::bench

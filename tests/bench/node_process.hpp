#pragma once
/// A node as the coordinator sees it: a child process that is this program in another role.
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
  /// Ends it by force unless it has ended.
  ~NodeProcess();
  NodeProcess(const NodeProcess&) = delete;

  unsigned number() const noexcept { return number_; }
  void send(const nlohmann::json& message);
  /// Its next message. Throws Failure with what the node says went wrong, or how it died.
  nlohmann::json receive(double seconds);
  /// Waits for it to leave by itself. Throws Failure when it does not, or not with success.
  void join(double seconds);

 private:
  /// Whether it has ended; waits until then or for `seconds`.
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

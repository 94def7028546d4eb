#pragma once
/// One JSON document a line over a pair of pipes, with a limit for every wait.
#include <nlohmann/json.hpp>
#include <string>

namespace sidestep::bench {

class MessagePipe {
 public:
  /// Owns neither descriptor.
  MessagePipe(int read_fd, int write_fd) noexcept : read_fd_(read_fd), write_fd_(write_fd) {}

  /// Throws Failure when the other side has gone.
  void send(const nlohmann::json& message);
  /// Throws Failure when the other side has gone or nothing came for `seconds`.
  nlohmann::json receive(double seconds);

 private:
  int read_fd_;
  int write_fd_;
  std::string pending_;
};

}  // namespace sidestep::bench

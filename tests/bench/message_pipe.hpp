#pragma once
/// Carries JSON documents, one per line, over a pair of pipes, with a limit for every wait.
#include <nlohmann/json.hpp>
#include <string>

namespace sidestep::bench {

class MessagePipe {
 public:
  /// Does not take ownership of the descriptors.
  MessagePipe(int read_fd, int write_fd) noexcept : read_fd_(read_fd), write_fd_(write_fd) {}

  /// Throws Failure if the other side is gone.
  void send(const nlohmann::json& message);
  /// Throws Failure if the other side is gone, or if nothing came for `seconds`.
  nlohmann::json receive(double seconds);

 private:
  int read_fd_;
  int write_fd_;
  std::string pending_;
};

}  // namespace sidestep::bench

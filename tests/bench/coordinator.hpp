#pragma once
/// The process that starts the nodes, sets the times, and collects what the nodes have counted.
#include <functional>
#include <memory>
#include <vector>

#include "tests/bench/node_process.hpp"
#include "tests/bench/report.hpp"

namespace sidestep::bench {

class Coordinator {
 public:
  /// Starts all nodes. Afterwards they are joined and their streams are on the engine. Throws
  /// Failure, as every member function does.
  explicit Coordinator(const Options& options);

  Result measure(uint64_t size);
  /// Ends the streams and the nodes in good order.
  void finish();

 private:
  std::vector<nlohmann::json> receive_from_all(double seconds);
  void send_to_all(const nlohmann::json& message);
  /// Computes what each node has to receive from what each node has sent.
  std::vector<nlohmann::json> expected_of(const std::vector<nlohmann::json>& answers) const;

  const Options& options_;
  std::vector<std::unique_ptr<NodeProcess>> nodes_;
};

}  // namespace sidestep::bench

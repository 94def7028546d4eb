#pragma once
/// The streams of a node: real TCP connections over the loopback device, which the engine then
/// carries. A node connects to the lower numbers and accepts the higher ones.
#include <memory>
#include <vector>

#include "engine/node.hpp"
#include "tests/bench/options.hpp"

namespace sidestep::bench {

/// One end of a stream.
struct Joint {
  unsigned peer;    ///< the node at the other end
  unsigned number;  ///< among the streams between the two
  int anchor;
  engine::Stream* stream;
};

class Mesh {
 public:
  /// Listens. `self` is this node's number. Throws Failure, as all of this does.
  Mesh(const Options& options, unsigned self, engine::Node& node);
  ~Mesh();
  Mesh(const Mesh&) = delete;

  int port() const noexcept { return port_; }
  /// Makes the connections; `ports` by node.
  void join(const std::vector<int>& ports);
  /// Returns once the engine carries both directions of every stream.
  void wait_for_engine(double seconds);
  /// Sends the end marks and waits until the engine has taken them.
  void finish(double seconds);
  /// After all nodes have finished.
  void close();

  /// Ordered by peer and number.
  const std::vector<Joint>& joints() const noexcept { return joints_; }

 private:
  void connect_to(unsigned peer, unsigned number, int port);
  void accept_one();

  const Options& options_;
  const unsigned self_;
  engine::Node& node_;
  int listener_ = -1;
  int port_ = 0;
  std::vector<Joint> joints_;
};

}  // namespace sidestep::bench

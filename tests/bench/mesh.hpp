#pragma once
/// The streams of a node: real TCP connections over the loopback device, which the engine then
/// carries. A node connects to the nodes with lower numbers and accepts those with higher ones.
#include <memory>
#include <vector>

#include "engine/node/node.hpp"
#include "tests/bench/options.hpp"

namespace sidestep::bench {

/// One end of a stream.
struct Joint {
  unsigned peer;    ///< the node at the other end
  unsigned number;  ///< of this stream among those between the two nodes
  int anchor;
  engine::Stream* stream;
};

class Mesh {
 public:
  /// Starts to listen. `self` is this node's number. Throws Failure, as every member function does.
  Mesh(const Options& options, unsigned self, engine::Node& node);
  ~Mesh();
  Mesh(const Mesh&) = delete;

  int port() const noexcept { return port_; }
  /// Makes the connections; `ports` is indexed by node.
  void join(const std::vector<int>& ports);
  /// Returns once the engine carries both directions of every stream.
  void wait_for_engine(double seconds);
  /// Sends the end marks and waits until the engine has taken them.
  void finish(double seconds);
  /// Closes the streams; call it after all nodes have finished.
  void close();

  /// Returns all ends, ordered by peer and number.
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

#pragma once
/// The paper's loopback transport (Ibdxnet, section 9.2.4), which comes as close to the limit of
/// device and ring as possible.
///
/// The sender fills all the room in the ring with headers, writes no payload, and posts it, again
/// and again. The headers name a stream that no node has, so the receiver's dispatcher gives every
/// buffer back at once, unread. The only thing that can be checked is that everything arrived.
#include <atomic>
#include <string>
#include <thread>

#include "engine/connection/connection.hpp"
#include "engine/progress/waiter.hpp"
#include "tests/bench/mesh.hpp"
#include "tests/bench/traffic.hpp"

namespace sidestep::bench {

class RawTraffic final : public Traffic {
 public:
  RawTraffic(engine::Node& node, const Options& options, unsigned self,
             const std::vector<Joint>& joints, size_t size);
  ~RawTraffic() override;

  void begin(uint64_t start) override;
  Amount received() override;
  void measure(bool) override {}
  std::vector<SentCount> stop() override;
  void drain(const std::vector<SentCount>& expected) override;

 private:
  enum class Stage { sending, finishing, giving_up };
  struct Link {
    Joint joint;
    engine::Connection* connection;
    engine::Waiter waiter;
    std::atomic<uint64_t> sent{0};  // fragments
    Link(const Joint& one, engine::EventSleeper& sleeper)
        : joint(one), connection(one.stream->connection()), waiter(sleeper) {}
  };

  void run();
  /// Sends a ring's worth at most. Returns true if something was sent.
  bool fill(Link& link, bool stopping);
  void wait(Stage stage);
  uint64_t fragments() const noexcept;
  /// True if the last message to this peer is complete.
  bool at_boundary(const Link& link) const noexcept;

  engine::Node& node_;
  const bool sends_;
  const uint64_t size_;
  const uint64_t pieces_;   ///< fragments per message
  const uint32_t payload_;  ///< of each fragment but the last
  uint64_t start_ = 0;
  uint64_t first_fragment_ = 0;  ///< the node's fragment count when the measurement began
  engine::EventSleeper::Owned sleeper_;
  std::vector<std::unique_ptr<Link>> links_;
  std::atomic<Stage> stage_{Stage::sending};
  std::atomic<bool> at_rest_{false};
  std::thread thread_;
};

}  // namespace sidestep::bench

#pragma once
/// Messages over streams. Each thread serves some of the streams, and sends, reads, polls and
/// sleeps like a program's thread inside the shim.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tests/bench/lane.hpp"
#include "tests/bench/traffic.hpp"

namespace sidestep::bench {

class StreamTraffic final : public Traffic {
 public:
  StreamTraffic(engine::Node& node, const Options& options, unsigned self,
                const std::vector<Joint>& joints, size_t size);
  ~StreamTraffic() override;

  void begin(uint64_t start) override;
  Amount received() override;
  void measure(bool on) override { measuring_.store(on, std::memory_order_relaxed); }
  std::vector<SentCount> stop() override;
  void drain(const std::vector<SentCount>& expected) override;
  Histogram::Sparse round_trips() override;
  uint64_t lost_wakeups() override { return lost_wakeups_.get(); }

 private:
  /// sending -> finishing (no new message) -> draining (it is known what has to arrive) ->
  /// giving_up.
  enum class Stage { sending, finishing, draining, giving_up };

  struct Expected {
    Lane* lane;
    uint64_t messages;
  };

  /// A thread and its lanes.
  struct Worker {
    engine::EventSleeper::Owned sleeper;
    std::vector<std::unique_ptr<Lane>> lanes;
    std::vector<Expected> expected;    // written before Stage::draining
    std::atomic<bool> at_rest{false};  // is finishing, and no message is half sent
    std::atomic<bool> ended{false};
    std::thread thread;

    /// In Stage::draining: true if everything has arrived and was answered.
    bool is_complete() const;
  };

  void run(Worker& worker);
  void serve(Worker& worker);
  void wait(Worker& worker, Stage stage);
  void set_stage(Stage stage) noexcept;
  /// Waits until `done` is true for all workers. Throws Failure.
  void wait_for(std::atomic<bool> Worker::*done, const char* what);
  void throw_problem();

  engine::Node& node_;
  const size_t size_;
  uint64_t start_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<Stage> stage_{Stage::sending};
  std::atomic<bool> measuring_{false};
  engine::Counter lost_wakeups_;
  std::mutex problem_lock_;
  std::string problem_;
};

}  // namespace sidestep::bench

#include "tests/bench/stream_traffic.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "engine/connection/connection.hpp"
#include "engine/progress/wait.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {
namespace {

constexpr size_t kReadBuffer = 64 * 1024;
constexpr uint64_t kPatience = 10'000'000'000;  // the limit for what takes milliseconds
// No sleep should reach its limit: whatever is found after that, nobody has announced.
constexpr timespec kSleepLimit{0, 100'000'000};

Lane::Role role_of(const Options& options, unsigned self) {
  const bool starts = starts_messages(options, self);
  if (options.pattern == Pattern::ping_pong) return starts ? Lane::Role::ping : Lane::Role::pong;
  return starts ? Lane::Role::stream : Lane::Role::receive;
}

}  // namespace

StreamTraffic::StreamTraffic(engine::Node& node, const Options& options, unsigned self,
                             const std::vector<Joint>& joints, size_t size)
    : node_(node), size_(size) {
  for (unsigned i = 0; i < options.threads; ++i) workers_.push_back(std::make_unique<Worker>());
  for (size_t i = 0; i < joints.size(); ++i) {
    Worker& worker = *workers_[i % workers_.size()];
    worker.lanes.push_back(
        std::make_unique<Lane>(joints[i], role_of(options, self), size, *worker.sleeper));
  }
}

StreamTraffic::~StreamTraffic() {
  set_stage(Stage::giving_up);
  for (const auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
}

void StreamTraffic::begin(uint64_t start) {
  start_ = start;
  for (const auto& worker : workers_)
    worker->thread = std::thread([this, &worker = *worker] { run(worker); });
}

Amount StreamTraffic::received() {
  Amount amount;
  for (const auto& worker : workers_) {
    for (const auto& lane : worker->lanes) {
      amount.messages += lane->received.get();
      amount.bytes += lane->received_bytes.get();
    }
  }
  return amount;
}

// ---- the threads

void StreamTraffic::run(Worker& worker) {
  const timespec start{static_cast<time_t>(start_ / 1'000'000'000),
                       static_cast<long>(start_ % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, nullptr);
  try {
    serve(worker);
  } catch (const std::exception& error) {
    const std::lock_guard guard(problem_lock_);
    if (problem_.empty()) problem_ = error.what();
  }
  worker.at_rest.store(true, std::memory_order_release);
  worker.ended.store(true, std::memory_order_release);
}

bool StreamTraffic::Worker::is_complete() const {
  return std::all_of(expected.begin(), expected.end(), [](const Expected& one) {
    return one.lane->received.get() >= one.messages && !one.lane->owes();
  });
}

void StreamTraffic::serve(Worker& worker) {
  std::vector<std::byte> buffer(kReadBuffer);
  for (;;) {
    const Stage stage = stage_.load(std::memory_order_acquire);
    if (stage == Stage::giving_up) return;
    const bool measuring = measuring_.load(std::memory_order_relaxed);
    bool any = false;
    for (const auto& lane : worker.lanes) {
      any |= lane->send(stage != Stage::sending);
      any |= lane->receive(buffer, measuring);
    }
    if (stage != Stage::sending) {
      const bool at_rest = std::all_of(worker.lanes.begin(), worker.lanes.end(),
                                       [](const auto& lane) { return lane->at_boundary(); });
      if (at_rest) worker.at_rest.store(true, std::memory_order_release);
      if (stage == Stage::draining && at_rest && worker.is_complete()) return;
    }
    if (any || node_.progress().poll()) continue;
    wait(worker, stage);
  }
}

void StreamTraffic::wait(Worker& worker, Stage stage) {
  // The one connection of all lanes, or null if they use several: then the peer's processor says
  // nothing.
  engine::Connection* connection = worker.lanes.front()->stream().connection();
  for (const auto& lane : worker.lanes) {
    lane->ask_for_room();
    if (lane->stream().connection() != connection) connection = nullptr;
  }
  const auto ready = [&] {
    return stage_.load(std::memory_order_seq_cst) != stage ||
           std::any_of(worker.lanes.begin(), worker.lanes.end(),
                       [](const auto& lane) { return lane->may_go_on(); });
  };
  if (engine::spin_until(node_.progress(), engine::SpinPeer(connection), ready)) return;

  pollfd wakeup{worker.sleeper->fd(), POLLIN, 0};
  worker.sleeper->prepare();
  for (const auto& lane : worker.lanes) lane->watch();
  {
    const engine::Parking parking(node_.progress());
    if (!ready() && ppoll(&wakeup, 1, &kSleepLimit, nullptr) == 0 &&
        (node_.progress().poll(), ready()))
      lost_wakeups_.add();
  }
  for (const auto& lane : worker.lanes) lane->unwatch();
  worker.sleeper->finish();
}

// ---- the node's main thread

void StreamTraffic::set_stage(Stage stage) noexcept {
  stage_.store(stage, std::memory_order_seq_cst);
  for (const auto& worker : workers_) worker->sleeper->wake();
}

void StreamTraffic::throw_problem() {
  const std::lock_guard guard(problem_lock_);
  if (!problem_.empty()) throw Failure(problem_);
}

void StreamTraffic::wait_for(std::atomic<bool> Worker::*done, const char* what) {
  const uint64_t limit = engine::now_ns() + kPatience;
  for (const auto& worker : workers_) {
    while (!((*worker).*done).load(std::memory_order_acquire)) {
      if (engine::now_ns() >= limit) throw Failure(what);
      usleep(500);
    }
  }
  throw_problem();
}

std::vector<SentCount> StreamTraffic::stop() {
  set_stage(Stage::finishing);
  wait_for(&Worker::at_rest, "a message can't be sent to its end");
  std::vector<SentCount> counts;
  for (const auto& worker : workers_)
    for (const auto& lane : worker->lanes)
      counts.push_back({lane->joint().peer, lane->joint().number, lane->sent.get()});
  return counts;
}

void StreamTraffic::drain(const std::vector<SentCount>& expected) {
  const auto messages_of = [&](const Joint& joint) {
    for (const SentCount& count : expected)
      if (count.peer == joint.peer && count.number == joint.number) return count.messages;
    return uint64_t{0};
  };
  for (const auto& worker : workers_)
    for (const auto& lane : worker->lanes)
      worker->expected.push_back({lane.get(), messages_of(lane->joint())});
  set_stage(Stage::draining);
  wait_for(&Worker::ended, "not everything that was sent has arrived");
  for (const auto& worker : workers_) {
    worker->thread.join();
    for (const auto& [lane, messages] : worker->expected)
      if (lane->received.get() != messages || lane->received_bytes.get() != messages * size_)
        throw Failure(fmt::format("stream {} to node {}: {} messages arrived, {} were sent",
                                  lane->joint().number, lane->joint().peer, lane->received.get(),
                                  messages));
  }
}

Histogram::Sparse StreamTraffic::round_trips() {
  Histogram all;
  for (const auto& worker : workers_)
    for (const auto& lane : worker->lanes) all.merge(lane->round_trips.sparse());
  return all.sparse();
}

}  // namespace sidestep::bench

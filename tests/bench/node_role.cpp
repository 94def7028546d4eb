#include "tests/bench/node_role.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "config/config.hpp"
#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/node/node.hpp"
#include "tests/bench/failure.hpp"
#include "tests/bench/message_pipe.hpp"
#include "tests/bench/raw_traffic.hpp"
#include "tests/bench/stream_traffic.hpp"

extern char** environ;

namespace sidestep::bench {
namespace {

using nlohmann::json;

// The coordinator is idle only while another node is working, which is bounded too.
constexpr double kCommandSeconds = 60;
constexpr double kEngineSeconds = 2;

Options options_of(const json& text) {
  Options options;
  options.nodes = text.at("nodes");
  options.pattern = static_cast<Pattern>(text.at("pattern").get<int>());
  options.streams = text.at("streams");
  options.threads = text.at("threads");
  options.raw = text.at("raw");
  return options;
}

engine::Node& start_engine() {
  config::Loaded loaded = config::load(environ);
  engine::log_open(loaded.config.log_level,
                   config::expand(loaded.config.log_file, static_cast<int>(getpid())));
  for (const std::string& complaint : loaded.complaints)
    engine::log(engine::LogLevel::warn, "%s", complaint.c_str());
  engine::Node* node = engine::Node::start(loaded.config);
  if (node == nullptr) throw Failure("the engine does not start");
  return *node;
}

uint64_t processor_ns() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& time) {
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U +
           static_cast<uint64_t>(time.tv_usec) * 1000;
  };
  return ns(usage.ru_utime) + ns(usage.ru_stime);
}

/// Returns everything that only grows, as a document.
json count_everything(engine::Node& node, Traffic& traffic, const std::vector<Joint>& joints) {
  std::vector<engine::Connection*> connections;
  for (const Joint& joint : joints) connections.push_back(joint.stream->connection());
  std::sort(connections.begin(), connections.end());
  connections.erase(std::unique(connections.begin(), connections.end()), connections.end());
  uint64_t work_requests = 0;
  uint64_t fragments = 0;
  for (const engine::Connection* connection : connections) {
    work_requests += connection->work_requests.get();
    fragments += connection->fragments.get();
  }
  const engine::NodeTotals counted = node.counted();
  const Amount received = traffic.received();
  return {{"ns", engine::now_ns()},         {"messages", received.messages},
          {"bytes", received.bytes},        {"work_requests", work_requests},
          {"fragments", fragments},         {"polls", node.progress().received().polls},
          {"parks", counted.parks},         {"yields", counted.yields},
          {"doorbells", counted.doorbells}, {"credit_stalls", counted.credit_stalls},
          {"orb_full", counted.orb_full},   {"spills", counted.spills},
          {"processor_ns", processor_ns()}};
}

void sleep_until(uint64_t ns) {
  const timespec time{static_cast<time_t>(ns / 1'000'000'000),
                      static_cast<long>(ns % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
}

/// Measures one message size.
void measure(engine::Node& node, const Options& options, unsigned number, const Mesh& mesh,
             const json& plan, MessagePipe& coordinator) {
  const size_t size = plan.at("size");
  std::unique_ptr<Traffic> traffic;
  if (options.raw) {
    traffic = std::make_unique<RawTraffic>(node, options, number, mesh.joints(), size);
  } else {
    traffic = std::make_unique<StreamTraffic>(node, options, number, mesh.joints(), size);
  }
  traffic->begin(plan.at("start"));
  sleep_until(plan.at("warm"));
  traffic->measure(true);
  const json before = count_everything(node, *traffic, mesh.joints());
  sleep_until(plan.at("stop"));
  const json after = count_everything(node, *traffic, mesh.joints());
  traffic->measure(false);
  json sent = json::array();
  for (const SentCount& count : traffic->stop())
    sent.push_back({count.peer, count.number, count.messages});
  coordinator.send({{"sent", sent}});

  std::vector<SentCount> expected;
  const json command = coordinator.receive(kCommandSeconds);
  for (const json& count : command.at("expected"))
    expected.push_back({count.at(0), count.at(1), count.at(2)});
  traffic->drain(expected);
  json result;
  for (const auto& [name, value] : after.items())
    result[name] = value.get<uint64_t>() - before.at(name).get<uint64_t>();
  result["lost_wakeups"] = traffic->lost_wakeups();
  result["round_trips"] = traffic->round_trips();
  coordinator.send(result);
}

void serve(unsigned number, MessagePipe& coordinator) {
  const Options options = options_of(coordinator.receive(kCommandSeconds));
  engine::Node& node = start_engine();
  Mesh mesh(options, number, node);
  coordinator.send({{"port", mesh.port()}});
  mesh.join(coordinator.receive(kCommandSeconds).at("ports"));
  mesh.wait_for_engine(kEngineSeconds);
  coordinator.send({{"ready", true}});
  for (;;) {
    const json command = coordinator.receive(kCommandSeconds);
    if (command.contains("finish")) break;
    measure(node, options, number, mesh, command, coordinator);
  }
  mesh.finish(kEngineSeconds);
  coordinator.send({{"finished", true}});
  coordinator.receive(kCommandSeconds);
  mesh.close();
}

}  // namespace

int run_node(unsigned number) {
  MessagePipe coordinator(STDIN_FILENO, STDOUT_FILENO);
  try {
    serve(number, coordinator);
    return 0;
  } catch (const std::exception& error) {
    try {
      coordinator.send({{"error", error.what()}});
    } catch (const Failure&) {
      // There is nobody left to tell.
    }
    return 1;
  }
}

}  // namespace sidestep::bench

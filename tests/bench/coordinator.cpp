#include "tests/bench/coordinator.hpp"

#include <algorithm>
#include <map>

#include "engine/base/clock.hpp"

namespace sidestep::bench {
namespace {

using nlohmann::json;

constexpr double kStepSeconds = 15;  // the limit for a step that takes milliseconds
constexpr uint64_t kStartDelay = 50'000'000;
constexpr double kWarmSeconds = 0.1;

}  // namespace

Coordinator::Coordinator(const Options& options) : options_(options) {
  for (unsigned number = 0; number < options.nodes; ++number)
    nodes_.push_back(std::make_unique<NodeProcess>(number, options));
  std::vector<int> ports;
  for (const json& answer : receive_from_all(kStepSeconds)) ports.push_back(answer.at("port"));
  send_to_all({{"ports", ports}});
  receive_from_all(kStepSeconds);
}

std::vector<json> Coordinator::receive_from_all(double seconds) {
  std::vector<json> answers;
  for (const auto& node : nodes_) answers.push_back(node->receive(seconds));
  return answers;
}

void Coordinator::send_to_all(const json& message) {
  for (const auto& node : nodes_) node->send(message);
}

std::vector<json> Coordinator::expected_of(const std::vector<json>& answers) const {
  using Key = std::tuple<unsigned, unsigned, unsigned>;  // from, to, number
  std::map<Key, uint64_t> sent;
  for (unsigned node = 0; node < answers.size(); ++node)
    for (const json& count : answers[node].at("sent"))
      sent[{node, count.at(0), count.at(1)}] = count.at(2);
  std::vector<json> expected(answers.size(), json::array());
  for (const auto& [key, messages] : sent) {
    const auto [from, to, number] = key;
    // The answering side still answers pings after it was asked for its count. In the end there are
    // as many answers as pings.
    const bool answer = options_.pattern == Pattern::ping_pong && !starts_messages(options_, from);
    expected[to].push_back({from, number, answer ? sent[{to, from, number}] : messages});
  }
  return expected;
}

Result Coordinator::measure(uint64_t size) {
  const auto ns = [](double seconds) { return static_cast<uint64_t>(seconds * 1e9); };
  const uint64_t start = engine::now_ns() + kStartDelay;
  const uint64_t warm = start + ns(std::min(kWarmSeconds, options_.seconds / 4));
  send_to_all(
      {{"size", size}, {"start", start}, {"warm", warm}, {"stop", warm + ns(options_.seconds)}});
  const std::vector<json> expected = expected_of(receive_from_all(options_.seconds + kStepSeconds));
  for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->send({{"expected", expected[i]}});
  return summarize(options_, size, receive_from_all(kStepSeconds));
}

void Coordinator::finish() {
  send_to_all({{"finish", true}});
  receive_from_all(kStepSeconds);
  send_to_all({{"leave", true}});
  for (const auto& node : nodes_) node->join(kStepSeconds);
}

}  // namespace sidestep::bench

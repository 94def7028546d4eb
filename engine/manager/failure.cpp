// A connection to another host that has failed while both nodes live. Each end sends the other its
// reports (stream/recovery.hpp) in parts of two, and repeats each part until it is acknowledged.
// The streams that both ends have then go on over the anchors. The link may be down for a while, as
// TCP would tolerate: the streams end with an error only after kPatience, or when a peer answers
// that the node is gone.
#include <algorithm>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/manager/manager.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kFirstWait = 50 * kMillisecond;
constexpr uint64_t kLongestWait = 2'000 * kMillisecond;
constexpr uint64_t kPatience = 120'000 * kMillisecond;
constexpr uint32_t kReportsPerPart = 2;
constexpr uint32_t kPartsAtOnce = 64;
constexpr uint32_t kMostParts = 1U << 16;
constexpr size_t kRemembered = 16;

static_assert(sizeof(StreamReport) <= sizeof(DiscoveryMessage::endpoint) &&
              sizeof(StreamReport) <= sizeof(DiscoveryMessage::tuple));

void put_reports(DiscoveryMessage& message, const StreamReport* reports, size_t count) noexcept {
  message.answer = static_cast<uint32_t>(count);
  if (count > 0)
    std::memcpy(static_cast<void*>(&message.endpoint), &reports[0], sizeof(StreamReport));
  if (count > 1) std::memcpy(static_cast<void*>(&message.tuple), &reports[1], sizeof(StreamReport));
}

std::vector<StreamReport> get_reports(const DiscoveryMessage& message) {
  std::vector<StreamReport> reports(std::min(message.answer, kReportsPerPart));
  if (reports.size() > 0) std::memcpy(&reports[0], &message.endpoint, sizeof(StreamReport));
  if (reports.size() > 1) std::memcpy(&reports[1], &message.tuple, sizeof(StreamReport));
  return reports;
}

}  // namespace

bool Manager::RemoteFailure::all_acknowledged() const noexcept {
  return std::find(acknowledged.begin(), acknowledged.end(), false) == acknowledged.end();
}

void Manager::fail_remote(Remote& remote, const char* why) {
  if (remote.connection == nullptr) return;
  RemoteFailure failure;
  failure.attempt = remote.attempt;
  failure.connection = remote.connection;
  failure.ours = node_.streams.fail_connection(*remote.connection, why);
  const size_t parts = (failure.ours.size() + kReportsPerPart - 1) / kReportsPerPart;
  failure.acknowledged.assign(std::max<size_t>(parts, 1), false);
  failure.give_up_at = now_ns() + kPatience;
  remote.connection = nullptr;
  remote.confirmed = false;
  remote.retry_at = 0;
  remote.failures.push_back(std::move(failure));
  send_failure(remote, remote.failures.back());
}

void Manager::send_failure(const Remote& remote, RemoteFailure& failure) {
  ++failure.tries;
  failure.batch_end = static_cast<uint32_t>(failure.acknowledged.size());
  const uint64_t wait = kFirstWait << std::min(failure.tries - 1, 8U);
  failure.retry_at = now_ns() + std::min(wait, kLongestWait);
  uint32_t sent = 0;
  for (uint32_t part = 0; part < failure.acknowledged.size(); ++part) {
    if (failure.acknowledged[part]) continue;
    if (sent == kPartsAtOnce) {
      failure.batch_end = part;
      break;
    }
    DiscoveryMessage message = message_to(remote, DiscoveryType::failed);
    message.question = failure.attempt;
    message.stream = part;
    message.generation = static_cast<uint32_t>(failure.acknowledged.size());
    const size_t first = size_t{part} * kReportsPerPart;
    put_reports(message, failure.ours.data() + first,
                std::min<size_t>(failure.ours.size() - first, kReportsPerPart));
    port_.ask(remote.name.host, remote.own_ip, message, failure.tries);
    ++sent;
  }
}

void Manager::on_remote_failed(const DiscoveryMessage& message, const sockaddr_in6& from) {
  const auto found = remotes_.find(message.from);
  DiscoveryMessage reply = message;
  reply.type = static_cast<uint16_t>(DiscoveryType::failed_ack);
  std::swap(reply.from, reply.to);
  std::swap(reply.from_nid, reply.to_nid);
  reply.answer = 0;
  reply.endpoint = {};
  reply.tuple = {};
  const auto is_this = [&](const RemoteFailure& failure) {
    return failure.attempt == message.question;
  };
  if (found == remotes_.end()) {
    reply.type = static_cast<uint16_t>(DiscoveryType::gone);
    return port_.answer(from, {}, reply);
  }
  Remote& remote = found->second;
  if (remote.connection != nullptr && remote.attempt == message.question)
    fail_remote(remote, "it has failed at the peer node");
  auto failure = std::find_if(remote.failures.begin(), remote.failures.end(), is_this);
  if (failure == remote.failures.end()) {
    const auto& finished = remote.finished_failures;
    if (std::find(finished.begin(), finished.end(), message.question) == finished.end())
      reply.type = static_cast<uint16_t>(DiscoveryType::gone);  // nothing is known of it here
    return port_.answer(from, remote.own_ip, reply);
  }
  if (message.generation == 0 || message.generation > kMostParts ||
      message.stream >= message.generation)
    return;
  port_.answer(from, remote.own_ip, reply);
  if (failure->connection == nullptr) return;
  failure->theirs[message.stream] = get_reports(message);
  if (failure->theirs.size() < message.generation) return;
  std::vector<StreamReport> reports;
  for (const auto& [part, some] : failure->theirs)
    reports.insert(reports.end(), some.begin(), some.end());
  failure->theirs.clear();
  node_.streams.land_streams(*failure->connection, reports);
  failure->connection = nullptr;
  if (failure->all_acknowledged()) end_failure(remote, message.question, "");
}

void Manager::on_remote_failed_ack(const DiscoveryMessage& message) {
  const auto found = remotes_.find(message.from);
  if (found == remotes_.end()) return;
  Remote& remote = found->second;
  for (RemoteFailure& failure : remote.failures) {
    if (failure.attempt != message.question || message.stream >= failure.acknowledged.size())
      continue;
    failure.acknowledged[message.stream] = true;
    if (!failure.all_acknowledged()) {
      // When the whole batch has arrived, the next one follows at once. What was lost of a batch is
      // sent again by retry_failures().
      const auto first = std::find(failure.acknowledged.begin(), failure.acknowledged.end(), false);
      if (first - failure.acknowledged.begin() >= static_cast<ptrdiff_t>(failure.batch_end)) {
        failure.tries = 0;
        send_failure(remote, failure);
      }
    } else if (failure.connection == nullptr) {
      end_failure(remote, message.question, "");
    }
    return;
  }
}

void Manager::end_failure(Remote& remote, uint64_t attempt, const char* why, PeerProcess peer) {
  const auto failure =
      std::find_if(remote.failures.begin(), remote.failures.end(),
                   [&](const RemoteFailure& one) { return one.attempt == attempt; });
  if (failure == remote.failures.end()) return;
  if (failure->connection != nullptr)
    node_.streams.lose_connection(*failure->connection, why, peer);
  remote.failures.erase(failure);
  remote.finished_failures.push_back(attempt);
  if (remote.finished_failures.size() > kRemembered)
    remote.finished_failures.erase(remote.finished_failures.begin());
}

void Manager::retry_failures(Remote& remote, uint64_t now) {
  for (size_t i = 0; i < remote.failures.size();) {
    RemoteFailure& failure = remote.failures[i];
    if (now >= failure.give_up_at) {
      end_failure(remote, failure.attempt, "the peer node does not answer");
      continue;
    }
    if (now >= failure.retry_at) {
      if (failure.all_acknowledged()) {
        failure.retry_at = std::min(now + kLongestWait, failure.give_up_at);  // waits for theirs
      } else {
        send_failure(remote, failure);
      }
    }
    ++i;
  }
}

}  // namespace sidestep::engine

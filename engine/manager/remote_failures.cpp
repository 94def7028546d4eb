#include "engine/manager/remote_failures.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/lifecycle/node_streams.hpp"

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

bool RemoteFailures::Failure::all_acknowledged() const noexcept {
  return std::find(acknowledged.begin(), acknowledged.end(), false) == acknowledged.end();
}

void RemoteFailures::add(Connection& connection, uint64_t attempt, const char* why) {
  Failure failure;
  failure.attempt = attempt;
  failure.connection = &connection;
  failure.ours = node_.streams.fail_connection(connection, why);
  const size_t parts = (failure.ours.size() + kReportsPerPart - 1) / kReportsPerPart;
  failure.acknowledged.assign(std::max<size_t>(parts, 1), false);
  failure.give_up_at = now_ns() + kPatience;
  failures_.push_back(std::move(failure));
  send(failures_.back());
}

void RemoteFailures::send(Failure& failure) {
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
    DiscoveryMessage message =
        message_between(node_, peer_, DiscoveryType::failed, failure.attempt);
    message.stream = part;
    message.generation = static_cast<uint32_t>(failure.acknowledged.size());
    const size_t first = size_t{part} * kReportsPerPart;
    put_reports(message, failure.ours.data() + first,
                std::min<size_t>(failure.ours.size() - first, kReportsPerPart));
    port_.ask(peer_.name.host, peer_.own_ip, message, failure.tries);
    ++sent;
  }
}

DiscoveryMessage RemoteFailures::reply_to(const DiscoveryMessage& message,
                                          DiscoveryType type) noexcept {
  DiscoveryMessage reply = message;
  reply.type = static_cast<uint16_t>(type);
  std::swap(reply.from, reply.to);
  std::swap(reply.from_nid, reply.to_nid);
  reply.answer = 0;
  reply.endpoint = {};
  reply.tuple = {};
  return reply;
}

void RemoteFailures::on_failed(const DiscoveryMessage& message, const sockaddr_in6& from) {
  const auto failure = std::find_if(failures_.begin(), failures_.end(), [&](const Failure& one) {
    return one.attempt == message.question;
  });
  if (failure == failures_.end()) {
    const bool is_known =
        std::find(finished_.begin(), finished_.end(), message.question) != finished_.end();
    const DiscoveryType type = is_known ? DiscoveryType::failed_ack : DiscoveryType::gone;
    return port_.answer(from, peer_.own_ip, reply_to(message, type));
  }
  if (message.generation == 0 || message.generation > kMostParts ||
      message.stream >= message.generation)
    return;
  port_.answer(from, peer_.own_ip, reply_to(message, DiscoveryType::failed_ack));
  if (failure->connection == nullptr) return;
  failure->theirs[message.stream] = get_reports(message);
  if (failure->theirs.size() < message.generation) return;
  std::vector<StreamReport> reports;
  for (const auto& [part, some] : failure->theirs)
    reports.insert(reports.end(), some.begin(), some.end());
  failure->theirs.clear();
  node_.streams.land_streams(*failure->connection, reports);
  failure->connection = nullptr;
  if (failure->all_acknowledged()) end(message.question, "", PeerProcess::may_live);
}

void RemoteFailures::on_failed_ack(const DiscoveryMessage& message) {
  for (Failure& failure : failures_) {
    if (failure.attempt != message.question || message.stream >= failure.acknowledged.size())
      continue;
    failure.acknowledged[message.stream] = true;
    if (!failure.all_acknowledged()) {
      // When the whole batch has arrived, the next one follows at once. What was lost of a batch is
      // sent again by retry().
      const auto first = std::find(failure.acknowledged.begin(), failure.acknowledged.end(), false);
      if (first - failure.acknowledged.begin() >= static_cast<ptrdiff_t>(failure.batch_end)) {
        failure.tries = 0;
        send(failure);
      }
    } else if (failure.connection == nullptr) {
      end(message.question, "", PeerProcess::may_live);
    }
    return;
  }
}

void RemoteFailures::end(uint64_t attempt, const char* why, PeerProcess peer) {
  const auto failure = std::find_if(failures_.begin(), failures_.end(),
                                    [&](const Failure& one) { return one.attempt == attempt; });
  if (failure == failures_.end()) return;
  if (failure->connection != nullptr)
    node_.streams.lose_connection(*failure->connection, why, peer);
  failures_.erase(failure);
  finished_.push_back(attempt);
  if (finished_.size() > kRemembered) finished_.erase(finished_.begin());
}

void RemoteFailures::retry(uint64_t now) {
  for (size_t i = 0; i < failures_.size();) {
    Failure& failure = failures_[i];
    if (now >= failure.give_up_at) {
      end(failure.attempt, "the peer node does not answer", PeerProcess::may_live);
      continue;
    }
    if (now >= failure.retry_at) {
      if (failure.all_acknowledged()) {
        failure.retry_at = std::min(now + kLongestWait, failure.give_up_at);  // waits for theirs
      } else {
        send(failure);
      }
    }
    ++i;
  }
}

uint64_t RemoteFailures::next_at() const noexcept {
  uint64_t next = 0;
  for (const Failure& failure : failures_)
    if (next == 0 || failure.retry_at < next) next = failure.retry_at;
  return next;
}

void RemoteFailures::end_all(const char* why, PeerProcess peer) {
  while (!failures_.empty()) end(failures_.front().attempt, why, peer);
}

}  // namespace sidestep::engine

#include "engine/manager/remote_failures.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/lifecycle/node_streams.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr uint64_t kFirstWait = 50 * kMillisecond;
constexpr uint64_t kLongestWait = 2'000 * kMillisecond;
constexpr uint64_t kPatience = 120'000 * kMillisecond;
constexpr size_t kPerPart = datagram::Failed::kMost;
constexpr uint32_t kPartsAtOnce = 64;
constexpr uint32_t kMostParts = 1U << 16;
constexpr size_t kRemembered = 16;

}  // namespace

bool RemoteFailures::Failure::all_acknowledged() const noexcept {
  return std::find(acknowledged.begin(), acknowledged.end(), false) == acknowledged.end();
}

void RemoteFailures::add(Connection& connection, uint64_t attempt, const char* why) {
  Failure failure;
  failure.attempt = attempt;
  failure.connection = &connection;
  failure.ours = node_.streams.fail_connection(connection, why);
  const size_t parts = (failure.ours.size() + kPerPart - 1) / kPerPart;
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
    datagram::Failed said;
    said.part = part;
    said.parts = static_cast<uint32_t>(failure.acknowledged.size());
    const auto left = std::span(failure.ours).subspan(size_t{part} * kPerPart);
    said.count = static_cast<uint32_t>(std::min(left.size(), kPerPart));
    std::copy_n(left.begin(), said.count, said.reports.begin());
    port_.ask(peer_.name.host, peer_.own_ip, {header_between(node_, peer_, failure.attempt), said},
              failure.tries);
    ++sent;
  }
}

void RemoteFailures::on_failed(const DiscoveryMessage& message, const sockaddr_in6& from) {
  const uint64_t attempt = message.header.question;
  const auto said = message.as<datagram::Failed>();
  const DiscoveryMessage arrived(message.header.of_answer(), datagram::FailedAck{said.part});
  const auto failure = std::find_if(failures_.begin(), failures_.end(),
                                    [&](const Failure& one) { return one.attempt == attempt; });
  if (failure == failures_.end()) {
    const bool is_known = std::find(finished_.begin(), finished_.end(), attempt) != finished_.end();
    const DiscoveryMessage unknown(message.header.of_answer(), datagram::Gone{});
    return port_.answer(from, peer_.own_ip, is_known ? arrived : unknown);
  }
  if (said.parts == 0 || said.parts > kMostParts || said.part >= said.parts) return;
  port_.answer(from, peer_.own_ip, arrived);
  if (failure->connection == nullptr) return;
  const auto these = std::span(said.reports).first(said.count);
  failure->theirs[said.part].assign(these.begin(), these.end());
  if (failure->theirs.size() < said.parts) return;
  std::vector<StreamReport> reports;
  for (const auto& [part, some] : failure->theirs)
    reports.insert(reports.end(), some.begin(), some.end());
  failure->theirs.clear();
  node_.streams.fail_over_streams(*failure->connection, reports);
  failure->connection = nullptr;
  if (failure->all_acknowledged()) end(attempt, "", PeerProcess::may_live);
}

void RemoteFailures::on_failed_ack(const DiscoveryMessage& message) {
  const uint64_t attempt = message.header.question;
  const uint32_t part = message.as<datagram::FailedAck>().part;
  for (Failure& failure : failures_) {
    if (failure.attempt != attempt || part >= failure.acknowledged.size()) continue;
    failure.acknowledged[part] = true;
    if (!failure.all_acknowledged()) {
      // When the whole batch has arrived, the next one follows at once. What was lost of a batch is
      // sent again by retry().
      const auto first = std::find(failure.acknowledged.begin(), failure.acknowledged.end(), false);
      if (first - failure.acknowledged.begin() >= static_cast<ptrdiff_t>(failure.batch_end)) {
        failure.tries = 0;
        send(failure);
      }
    } else if (failure.connection == nullptr) {
      end(attempt, "", PeerProcess::may_live);
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

#include "tests/bench/raw_traffic.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "engine/progress/wait.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {
namespace {

using engine::FragmentHeader;
using engine::Orb;

constexpr uint64_t kPatience = 10'000'000'000;
// Arriving data wakes nobody here (the engine's own thread receives it then), so the thread must
// look again soon.
constexpr timespec kNap{0, 1'000'000};
/// An id that no stream gets (StreamTable).
constexpr uint32_t kNoStream = 0;

}  // namespace

RawTraffic::RawTraffic(engine::Node& node, const Options& options, unsigned self,
                       const std::vector<Joint>& joints, size_t size)
    : node_(node),
      sends_(starts_messages(options, self)),
      size_(size),
      pieces_((size + engine::kMaxFragmentPayload - 1) / engine::kMaxFragmentPayload),
      payload_(static_cast<uint32_t>(std::min<uint64_t>(size, engine::kMaxFragmentPayload))) {
  for (const Joint& joint : joints) links_.push_back(std::make_unique<Link>(joint, *sleeper_));
}

RawTraffic::~RawTraffic() {
  stage_.store(Stage::giving_up, std::memory_order_seq_cst);
  if (thread_.joinable()) thread_.join();
}

void RawTraffic::begin(uint64_t start) {
  // Every node is ready, so everything that the streams had to settle has been sent. Polls it away,
  // so that it is not counted.
  while (node_.progress().poll()) {
  }
  first_fragment_ = node_.progress().received().fragments;
  start_ = start;
  thread_ = std::thread([this] { run(); });
}

uint64_t RawTraffic::fragments() const noexcept {
  return node_.progress().received().fragments - first_fragment_;
}

Amount RawTraffic::received() {
  const uint64_t messages = fragments() / pieces_;
  return {messages, messages * size_};
}

bool RawTraffic::at_boundary(const Link& link) const noexcept {
  return link.sent.load(std::memory_order_relaxed) % pieces_ == 0;
}

bool RawTraffic::fill(Link& link, bool stopping) {
  Orb& orb = link.connection->orb();
  uint64_t sent = link.sent.load(std::memory_order_relaxed);
  const uint64_t before = sent;
  uint64_t unposted = 0;
  for (uint64_t bytes = 0; bytes < orb.size();) {
    if (stopping && sent % pieces_ == 0) break;
    const bool last = sent % pieces_ == pieces_ - 1;
    const uint32_t payload =
        last ? static_cast<uint32_t>(size_ - (pieces_ - 1) * payload_) : payload_;
    const uint64_t position = link.connection->reserve(payload, false);
    if (position == Orb::kNoSpace) break;
    const FragmentHeader header{
        kNoStream, payload, 0, static_cast<uint8_t>(engine::FragmentType::data), {}};
    std::memcpy(orb.at(position), &header, sizeof header);
    orb.commit(position, payload);
    ++sent;
    bytes += engine::fragment_size(payload);
    unposted += engine::fragment_size(payload);
    // Posts a work request's worth at a time, so that the receiver can work in the meantime.
    if (unposted >= engine::kMaxWorkRequest - engine::fragment_size(payload_)) {
      link.connection->kick();
      unposted = 0;
    }
  }
  if (unposted != 0) link.connection->kick();
  link.sent.store(sent, std::memory_order_relaxed);
  return sent != before;
}

void RawTraffic::run() {
  const timespec start{static_cast<time_t>(start_ / 1'000'000'000),
                       static_cast<long>(start_ % 1'000'000'000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, nullptr);
  for (;;) {
    const Stage stage = stage_.load(std::memory_order_seq_cst);
    if (stage == Stage::giving_up) return;
    bool any = false;
    if (sends_)
      for (const auto& link : links_) any |= fill(*link, stage != Stage::sending);
    if (stage == Stage::finishing &&
        std::all_of(links_.begin(), links_.end(),
                    [&](const auto& link) { return at_boundary(*link); }))
      at_rest_.store(true, std::memory_order_release);
    any |= node_.progress().poll();
    if (!any) wait(stage);
  }
}

void RawTraffic::wait(Stage stage) {
  engine::Connection* only = links_.size() == 1 ? links_.front()->connection : nullptr;
  const bool sending = sends_ && stage == Stage::sending;
  const uint64_t seen = node_.progress().received().fragments;
  if (sending)
    for (const auto& link : links_)
      if (!link->connection->has_room()) link->connection->want_space();
  const auto ready = [&] {
    return stage_.load(std::memory_order_seq_cst) != stage ||
           node_.progress().received().fragments != seen ||
           (sending && std::any_of(links_.begin(), links_.end(),
                                   [](const auto& link) { return link->connection->has_room(); }));
  };
  if (engine::spin_until(node_.progress(), engine::SpinPeer(only), ready)) return;

  pollfd wakeup{sleeper_->fd(), POLLIN, 0};
  sleeper_->prepare();
  for (const auto& link : links_) link->joint.stream->watches().add(link->waiter);
  {
    const engine::Parking parking(node_.progress());
    if (!ready()) ppoll(&wakeup, 1, &kNap, nullptr);
  }
  for (const auto& link : links_) link->joint.stream->watches().remove(link->waiter);
  sleeper_->finish();
}

std::vector<SentCount> RawTraffic::stop() {
  stage_.store(Stage::finishing, std::memory_order_seq_cst);
  const uint64_t limit = engine::now_ns() + kPatience;
  while (!at_rest_.load(std::memory_order_acquire)) {
    if (engine::now_ns() >= limit) throw Failure("a message can't be sent to its end");
    usleep(500);
  }
  std::vector<SentCount> counts;
  for (const auto& link : links_)
    counts.push_back({link->joint.peer, link->joint.number,
                      link->sent.load(std::memory_order_relaxed) / pieces_});
  return counts;
}

void RawTraffic::drain(const std::vector<SentCount>& expected) {
  uint64_t wanted = 0;
  for (const SentCount& count : expected) wanted += count.messages * pieces_;
  const uint64_t limit = engine::now_ns() + kPatience;
  while (fragments() < wanted && engine::now_ns() < limit) usleep(500);
  stage_.store(Stage::giving_up, std::memory_order_seq_cst);
  thread_.join();
  if (const uint64_t arrived = fragments(); arrived != wanted)
    throw Failure(fmt::format("{} fragments arrived, {} were sent", arrived, wanted));
  for (const auto& link : links_)
    if (link->connection->is_closed() || link->connection->endpoint().is_broken())
      throw Failure(fmt::format("the connection to node {} is lost", link->joint.peer));
}

}  // namespace sidestep::bench

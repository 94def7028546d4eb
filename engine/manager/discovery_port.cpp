#include "engine/manager/discovery_port.hpp"

#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr unsigned kMostDatagrams = 64;  // before links are looked at again
constexpr uint64_t kTakeOverEvery = 1'000 * kMillisecond;
}  // namespace

DiscoveryPort::DiscoveryPort(const ThisNode& node, Links& links, RateLimit& limit,
                             DatagramOwner& owner) noexcept
    : node_(node),
      links_(links),
      limit_(limit),
      owner_(owner),
      discovery_(static_cast<uint16_t>(node.config.discovery_port), ClusterKey::load(node.config),
                 node.progress.counters().datagrams_refused) {}

void DiscoveryPort::open(bool asks) noexcept {
  if (!discovery_.lets_talk()) return;
  bool& is_open = asks ? asks_ : answers_;
  if (std::exchange(is_open, true)) return;
  discovery_.open(asks);
  watch();
}

void DiscoveryPort::watch() noexcept {
  for (const int fd : {discovery_.answering_fd(), discovery_.asking_fd()})
    if (fd >= 0) node_.watch(fd, EPOLLIN);  // EEXIST is also fine
  // A node that does not own the port tries for it once a second: it may become free at any time.
  take_over_at_ = discovery_.answering_fd() < 0 ? now_ns() + kTakeOverEvery : 0;
}

void DiscoveryPort::take_over(uint64_t now) noexcept {
  if (take_over_at_ == 0 || now < take_over_at_) return;
  take_over_at_ = now + kTakeOverEvery;
  if (discovery_.take_over()) watch();
}

void DiscoveryPort::read(int fd) {
  DiscoveryMessage message;
  sockaddr_in6 from{};
  for (unsigned i = 0; i < kMostDatagrams && discovery_.receive(fd, message, from); ++i)
    if (!is_too_much(message, from)) deliver(message, from);
}

bool DiscoveryPort::is_too_much(const DiscoveryMessage& message, const sockaddr_in6& from) {
  // The nodes that a node deals with know its incarnation.
  if (discovery_.has_key() || owner_.deals_with(message.header.from)) return false;
  // An answer to no question costs next to nothing.
  if (message.type() == DiscoveryType::owner || message.type() == DiscoveryType::host_reply)
    return false;
  Address host;
  std::memcpy(host.ip.data(), &from.sin6_addr, host.ip.size());
  if (limit_.allows(host.ip, now_ns())) return false;
  node_.progress.counters().datagrams_dropped.add();
  if (!std::exchange(told_of_drop_, true))
    log(LogLevel::info,
        "discovery: too many datagrams come from unknown nodes, the last one from %s. They are "
        "dropped and only counted (datagrams_dropped); with SIDESTEP_KEY_FILE there is no limit",
        ip_text(host).c_str());
  return true;
}

void DiscoveryPort::on_relay(const Link& link, const control::Relay& relayed) {
  if (!link.is_own) return;
  sockaddr_in6 from{};
  from.sin6_family = AF_INET6;
  from.sin6_port = relayed.port;
  std::memcpy(&from.sin6_addr, relayed.ip.data(), relayed.ip.size());
  DiscoveryMessage datagram;
  if (discovery_.admit(&relayed.datagram, sizeof relayed.datagram, from, datagram))
    deliver(datagram, from);
}

void DiscoveryPort::deliver(const DiscoveryMessage& message, const sockaddr_in6& from) {
  if (message.header.to != 0 && message.header.to != node_.incarnation) return relay(message, from);
  owner_.on_datagram(message, from);
}

void DiscoveryPort::relay(const DiscoveryMessage& message, const sockaddr_in6& from) {
  int error = 0;
  const uint16_t nid = message.header.to_nid;
  Link* const link = nid != node_.nid ? links_.to(nid, error) : nullptr;
  // The node may live; the datagram will be sent again.
  if (error == -EAGAIN || Links::is_out_of_resources(error)) return;
  if (link != nullptr) {
    control::Relay relayed;
    relayed.datagram = message;
    std::memcpy(relayed.ip.data(), &from.sin6_addr, relayed.ip.size());
    relayed.port = from.sin6_port;
    links_.send(*link, relayed);
    return;
  }
  // A peer that asks for a node that no longer exists is told so. Anything but a request gets no
  // answer.
  if (message.type() != DiscoveryType::connect && message.type() != DiscoveryType::failed) return;
  discovery_.answer(from, {}, {message.header.of_answer(), datagram::Gone{}});
}

}  // namespace sidestep::engine

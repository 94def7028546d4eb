#include "engine/manager/host_watch.hpp"

#include <cstring>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/random.hpp"
#include "engine/control/manager_jobs.hpp"

namespace sidestep::engine {
namespace {

// Longer than the time after which a host that does not answer is asked again.
constexpr uint64_t kSilent = 15'000'000'000;
// After this, a host where no node has answered to a question about a stream is asked again.
constexpr uint64_t kSilence = 30'000'000'000;

bool is_about_host(const DiscoveryMessage& message) noexcept {
  return message.tuple.local.port == 0 && message.tuple.remote == Address{};
}

}  // namespace

void HostWatch::start() {
  question_ = random_number();
  if (node_.config.nodes.empty()) return;
  if (port_.lacks_key())
    log(LogLevel::warn,
        "SIDESTEP_NODES is set, but hosts are joined only with SIDESTEP_KEY_FILE, or without a key "
        "where SIDESTEP_ALLOW_NO_KEY=yes says so; none of them is asked");
  if (!node_.jobs.talks_to_other_hosts()) return;
  port_.open(true);
  hosts_.start(
      node_.config.nodes, [](void* jobs) { static_cast<ManagerJobs*>(jobs)->wake(); }, &node_.jobs);
}

void HostWatch::ask(uint64_t now) {
  hosts_.take_news(now);
  if (hosts_.next_at() == 0 || hosts_.next_at() > now) return;
  std::vector<Address> gone;
  for (const Address& host : hosts_.due(now, gone)) {
    if (node_.own_addresses.contains(host, now)) continue;
    DiscoveryMessage message;
    message.type = static_cast<uint16_t>(DiscoveryType::who_has);
    message.question = question_;
    message.from = node_.incarnation;
    message.from_nid = node_.nid;
    message.tuple.local = host;
    port_.ask(host, {}, message);
  }
  for (const Address& host : gone) {
    if (node_.own_addresses.contains(host, now)) continue;
    log(LogLevel::info, "no node answers on host %s (SIDESTEP_NODES)", ip_text(host).c_str());
    silent_hosts_.add(host.ip, now, now + kSilent);
  }
}

bool HostWatch::on_question(const DiscoveryMessage& message, const sockaddr_in6& from) {
  if (!is_about_host(message)) return false;
  DiscoveryMessage answer = message;
  answer.type = static_cast<uint16_t>(DiscoveryType::owner);
  answer.to = message.from;
  answer.to_nid = message.from_nid;
  answer.from = node_.incarnation;
  answer.from_nid = node_.nid;
  answer.answer = static_cast<uint32_t>(OwnerAnswer::no);
  port_.answer(from, message.tuple.local.ip, answer);
  return true;
}

bool HostWatch::on_answer(const DiscoveryMessage& message, const sockaddr_in6& from) {
  if (!is_about_host(message)) return false;
  const KnownHosts::Ip& ip = message.tuple.local.ip;
  if (message.question != question_ || std::memcmp(&from.sin6_addr, ip.data(), 16) != 0)
    return true;
  silent_hosts_.remove(ip);
  if (!hosts_.answered(ip, now_ns())) return true;
  log(LogLevel::info, "a node answers on host %s (SIDESTEP_NODES)",
      ip_text(message.tuple.local).c_str());
  node_.device_for_others();
  return true;
}

void HostWatch::note_silence(const Discovery::Ip& host, uint64_t now) {
  silent_hosts_.add(host, now, now + kSilence);
}

}  // namespace sidestep::engine

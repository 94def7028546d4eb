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
    DiscoveryHeader header;
    header.question = question_;
    header.from = node_.incarnation;
    header.from_nid = node_.nid;
    port_.ask(host, {}, {header, datagram::AskHost{host.ip}});
  }
  for (const Address& host : gone) {
    if (node_.own_addresses.contains(host, now)) continue;
    log(LogLevel::info, "no node answers on host %s (SIDESTEP_NODES)", ip_text(host).c_str());
    silent_hosts_.add(host.ip, now, now + kSilent);
  }
}

void HostWatch::on_question(const DiscoveryMessage& message, const sockaddr_in6& from) {
  const auto ip = message.as<datagram::AskHost>().ip;
  DiscoveryHeader header = message.header.of_answer();
  header.from = node_.incarnation;
  header.from_nid = node_.nid;
  port_.answer(from, ip, {header, datagram::HostReply{ip}});
}

void HostWatch::on_answer(const DiscoveryMessage& message, const sockaddr_in6& from) {
  Address host;
  host.ip = message.as<datagram::HostReply>().ip;
  if (message.header.question != question_ ||
      std::memcmp(&from.sin6_addr, host.ip.data(), host.ip.size()) != 0)
    return;
  silent_hosts_.remove(host.ip);
  if (!hosts_.answered(host.ip, now_ns())) return;
  log(LogLevel::info, "a node answers on host %s (SIDESTEP_NODES)", ip_text(host).c_str());
  node_.device_for_others();
}

void HostWatch::note_silence(const Discovery::Ip& host, uint64_t now) {
  silent_hosts_.add(host, now, now + kSilence);
}

}  // namespace sidestep::engine

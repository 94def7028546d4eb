#include "engine/control/known_hosts.hpp"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "config/nodes.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/engine_threads.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

// A host that is present is asked now and then; one that is not is asked more often.
constexpr uint64_t kAgain = KnownHosts::kSecond;
constexpr uint64_t kPresent = 30 * KnownHosts::kSecond;
constexpr uint64_t kAbsent = 10 * KnownHosts::kSecond;

bool is_number(const std::string& host) noexcept {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

// ---- what is known

void KnownHosts::update(const std::vector<Address>& addresses, uint64_t now) {
  std::map<Ip, Host> fresh;
  for (const Address& address : addresses) {
    if (fresh.size() == kMost) break;
    const auto known = hosts_.find(address.ip);
    fresh[address.ip] = known != hosts_.end() ? known->second : Host{State::unknown, 0, now};
  }
  hosts_ = std::move(fresh);
}

void KnownHosts::take_news(uint64_t now) {
  bool any = false;
  std::vector<Address> news;
  {
    const std::lock_guard guard(news_lock_);
    any = std::exchange(has_news_, false);
    news.swap(news_);
  }
  if (any) update(news, now);
}

std::vector<Address> KnownHosts::due(uint64_t now, std::vector<Address>& gone) {
  std::vector<Address> asked;
  for (auto& [ip, host] : hosts_) {
    if (now < host.ask_at) continue;
    Address address;
    address.ip = ip;
    if (host.unanswered >= kUnanswered && host.state != State::absent) {
      host.state = State::absent;
      gone.push_back(address);
    }
    ++host.unanswered;
    host.ask_at = now + (host.state == State::absent ? kAbsent : kAgain);
    asked.push_back(address);
  }
  return asked;
}

bool KnownHosts::answered(const Ip& ip, uint64_t now) {
  const auto found = hosts_.find(ip);
  if (found == hosts_.end()) return false;
  Host& host = found->second;
  const bool is_news = host.state != State::present;
  host = {State::present, 0, now + kPresent};
  return is_news;
}

void KnownHosts::ask_soon(const Ip& ip, uint64_t now) {
  const auto found = hosts_.find(ip);
  if (found != hosts_.end()) found->second.ask_at = now;
}

uint64_t KnownHosts::next_at() const noexcept {
  uint64_t next = 0;
  for (const auto& [ip, host] : hosts_)
    if (next == 0 || host.ask_at < next) next = std::max<uint64_t>(host.ask_at, 1);
  return next;
}

// ---- the thread

std::vector<Address> KnownHosts::look_up(const std::vector<std::string>& hosts) {
  std::vector<Address> addresses;
  for (const std::string& host : hosts) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_DGRAM;
    if (is_number(host)) wanted.ai_flags = AI_NUMERICHOST;
    addrinfo* first = nullptr;
    if (getaddrinfo(host.c_str(), nullptr, &wanted, &first) != 0) continue;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, freeaddrinfo);
    for (const addrinfo* one = first; one != nullptr; one = one->ai_next) {
      auto address = to_address(one->ai_addr);
      if (!address) continue;
      address->port = 0;
      if (std::find(addresses.begin(), addresses.end(), *address) == addresses.end())
        addresses.push_back(*address);
    }
  }
  return addresses;
}

void KnownHosts::start(const std::string& nodes, void (*tell)(void*), void* whom) {
  if (nodes.empty()) return;
  nodes_ = nodes;
  tell_ = tell;
  whom_ = whom;
  start_engine_thread(entry, this, "sidestep-hosts");
}

void* KnownHosts::entry(void* self) noexcept {
  try {
    static_cast<KnownHosts*>(self)->run();
  } catch (const std::exception& error) {
    log(LogLevel::warn, "SIDESTEP_NODES: %s; the list is not read again", error.what());
  }
  return nullptr;
}

void KnownHosts::run() {
  std::vector<std::string> before;
  for (bool first = true;; first = false) {
    const std::vector<std::string> hosts = config::node_hosts(nodes_);
    const bool all_numbers = std::all_of(hosts.begin(), hosts.end(), is_number);
    // Numbers mean the same as before; a name may now mean something else.
    if (first || hosts != before || !all_numbers) {
      std::vector<Address> found = look_up(hosts);
      {
        const std::lock_guard guard(news_lock_);
        news_ = std::move(found);
        has_news_ = true;
      }
      tell_(whom_);
    }
    if (all_numbers && !nodes_.starts_with('@')) return;
    before = hosts;
    if (!sleep_unless_to_end(kReadEvery)) return;
  }
}

}  // namespace sidestep::engine

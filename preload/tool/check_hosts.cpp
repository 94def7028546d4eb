// Checks of other hosts: whether a node answers there, and what would happen to a stream.
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "config/nodes.hpp"
#include "config/rules.hpp"
#include "config/text.hpp"
#include "engine/base/clock.hpp"
#include "engine/base/own_addresses.hpp"
#include "engine/client/control_client.hpp"
#include "engine/client/discovery_client.hpp"
#include "engine/devices/factory.hpp"
#include "preload/tool/check_parts.hpp"

namespace sidestep::tool {
namespace {

using engine::Address;
using engine::HostReply;

constexpr int kAnswerTimeoutMs = 3500;  // the kernel looks for an absent neighbor for 3 s

/// HOST, HOST:PORT, [IPV6] or [IPV6]:PORT; an IPv6 address may be written without brackets.
struct Target {
  std::string host;
  std::optional<uint16_t> port;
};

std::optional<Target> parse_target(std::string_view word) {
  Target target;
  std::string_view port;
  size_t const colon = word.rfind(':');
  if (word.starts_with('[')) {
    size_t const end = word.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    target.host = word.substr(1, end - 1);
    std::string_view const rest = word.substr(end + 1);
    if (!rest.empty() && !rest.starts_with(':')) return std::nullopt;
    if (rest.starts_with(':')) port = rest.substr(1);
    if (rest == ":") return std::nullopt;
  } else if (colon != std::string_view::npos && word.find(':') == colon) {
    target.host = word.substr(0, colon);
    port = word.substr(colon + 1);
    if (port.empty()) return std::nullopt;
  } else {
    target.host = word;
  }
  if (target.host.empty()) return std::nullopt;
  if (port.empty()) return target;
  auto const number = config::text::parse_number(port);
  if (!number || *number == 0 || *number > 65535) return std::nullopt;
  target.port = static_cast<uint16_t>(*number);
  return target;
}

struct Resolved {
  std::vector<Address> addresses;  ///< without duplicates
  std::string fault;
};

Resolved resolve(std::string const& host) {
  Resolved resolved;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (int const error = getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    resolved.fault = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return resolved;
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> const owner(list, &freeaddrinfo);
  for (addrinfo const* entry = list; entry != nullptr; entry = entry->ai_next) {
    auto const address = engine::to_address(entry->ai_addr);
    auto& known = resolved.addresses;
    if (address && std::find(known.begin(), known.end(), *address) == known.end())
      known.push_back(*address);
  }
  if (resolved.addresses.empty()) resolved.fault = "it has no address";
  return resolved;
}

sockaddr_in6 to_sockaddr(Address const& address) {
  sockaddr_in6 result{};
  result.sin6_family = AF_INET6;
  result.sin6_port = htons(address.port);
  std::memcpy(&result.sin6_addr, address.ip.data(), address.ip.size());
  return result;
}

/// Returns the address that a connection to `remote` would have on this host. Sends nothing.
std::optional<Address> local_end(Address const& remote) {
  sockaddr_in6 const to = to_sockaddr(remote);
  sockaddr_in6 own{};
  socklen_t length = sizeof own;
  int const fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  bool const known = connect(fd, reinterpret_cast<sockaddr const*>(&to), sizeof to) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  close(fd);
  if (!known) return std::nullopt;
  auto address = engine::to_address(reinterpret_cast<sockaddr const*>(&own));
  if (address) address->port = 0;  // the kernel chooses it when a program connects
  return address;
}

// ---- does a node answer?

struct Outcome {
  bool good = false;
  std::string found;
  std::string advice;
  bool here = false;  ///< the address is one of this host
};

Outcome outcome_of(HostReply const& reply, unsigned port) {
  switch (reply.kind) {
    case HostReply::Kind::answered:
      return {true, fmt::format("a node answers on UDP port {}", port), ""};
    case HostReply::Kind::elsewhere:
      return {false, fmt::format("a node answers, but from its address {}", reply.from),
              "Nodes believe no answer that comes from another address; use that one, or correct "
              "the routes of that host."};
    case HostReply::Kind::refused:
      if (!reply.from.empty())
        return {false, fmt::format("{} refuses UDP port {} to it", reply.from, port),
                "That is a router or a firewall on the way; have it let the port through."};
      return {false, fmt::format("nothing listens on UDP port {}", port),
              "Start a program under Sidestep there; it opens the port with its first stream. A "
              "firewall that rejects looks the same."};
    case HostReply::Kind::unreachable:
      return {false, fmt::format("can't be reached ({})", std::strerror(reply.error)),
              fmt::format("Check that it is up, that there is a route to it, and that no firewall "
                          "rejects UDP port {}.",
                          port)};
    case HostReply::Kind::silent:
      break;
  }
  return {
      false, fmt::format("no answer on UDP port {}", port),
      "Either no program with a stream runs under Sidestep there, or a firewall drops that port "
      "on the way, or SIDESTEP_DISCOVERY_PORT, SIDESTEP_KEY_FILE or the version differ there."};
}

/// Returns the outcome for an address of this host, where it is not the port that counts but which
/// processes run here.
Outcome outcome_here(Machine const& machine, Outcome const& remote) {
  size_t const nodes = engine::local_nodes(engine::NodeNames(machine.config.directory)).size();
  if (nodes != 0)
    return {true,
            fmt::format("this host; {} under Sidestep here",
                        nodes == 1 ? "a process of this user is"
                                   : fmt::format("{} processes of this user are", nodes)),
            "", true};
  return {false,
          "this host; no process of this user is under Sidestep here" +
              (remote.good            ? ", but one of another user"
               : remote.found.empty() ? ""
                                      : "; " + remote.found),
          "Start a program under Sidestep, as this user; it counts from its first stream on.",
          true};
}

/// Finds out whether a node answers at each address; the outcomes have the order of the addresses.
std::vector<Outcome> ask(Machine const& machine, std::vector<Address> const& addresses) {
  auto const port = static_cast<uint16_t>(machine.config.discovery_port);
  std::vector<Outcome> outcomes;
  if (machine.talks_to_other_hosts()) {
    for (HostReply const& reply : engine::ask_hosts(addresses, port, machine.key, kAnswerTimeoutMs))
      outcomes.push_back(outcome_of(reply, port));
  } else {
    outcomes.resize(addresses.size());
  }
  engine::OwnAddresses own;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (engine::is_loopback(addresses[i]) || own.contains(addresses[i], engine::now_ns()))
      outcomes[i] = outcome_here(machine, outcomes[i]);
    else if (!machine.talks_to_other_hosts())
      outcomes[i] = {false, "can't be asked without the key", "See the lines above."};
  }
  return outcomes;
}

// ---- a stream

/// Returns "" if the rules let a stream leave the kernel, or else the reason why they don't.
std::string refusal_of_rules(config::Config const& config, Address const& local,
                             Address const& remote) {
  std::string error;
  auto const rules = config::Rules::parse(config.rules, error);
  if (!rules) return {};
  sockaddr_in6 const own = to_sockaddr(local);
  sockaddr_in6 const peer = to_sockaddr(remote);
  return rules->allows("", "", reinterpret_cast<sockaddr const&>(own),
                       reinterpret_cast<sockaddr const&>(peer))
             ? ""
             : "SIDESTEP_RULES keeps it on the kernel";
}

/// Returns a proviso if a rule depends on the program, which is not known here.
std::string proviso_of_rules(config::Config const& config) {
  return config.rules.find("program=") != std::string::npos
             ? "; rules with program= can say otherwise for some programs"
             : "";
}

void check_stream(Machine const& machine, std::string const& subject, Address const& remote,
                  Outcome const& node, Findings& findings) {
  constexpr std::string_view kCheck = "stream";
  config::Config const& config = machine.config;
  auto const local = local_end(remote);
  if (!local) {
    findings.fail(kCheck, subject, "this host has no route to it", "See `ip route`.");
    return;
  }
  std::string const proviso = proviso_of_rules(config);
  std::string refusal = refusal_of_rules(config, *local, remote);
  if (!config.enable) refusal = "SIDESTEP_ENABLE=no keeps it on the kernel";
  engine::DeviceKind const kind = engine::Devices(config).kind_for(false, node.here);
  if (refusal.empty() && kind == engine::DeviceKind::none)
    refusal = fmt::format("SIDESTEP_DEVICE={} keeps it on the kernel", config.device);
  if (!refusal.empty()) {
    findings.warn(kCheck, subject, refusal + (config.enable ? proviso : ""),
                  "Change that setting if the stream is to leave the kernel.");
    return;
  }
  if (!node.here && !machine.talks_to_other_hosts()) {
    findings.fail(kCheck, subject, "stays on the kernel: other hosts are not joined without a key",
                  "See the lines above.");
    return;
  }
  bool const shared_memory = kind == engine::DeviceKind::shm;
  if (!(shared_memory ? machine.shared_memory : machine.verbs)) {
    findings.fail(kCheck, subject,
                  shared_memory ? std::string("stays on the kernel: no shared memory")
                                : "stays on the kernel: " + machine.verbs_fault,
                  "See the lines above.");
    return;
  }
  if (!node.here && machine.cannot_answer) {
    findings.fail(kCheck, subject,
                  fmt::format("stays on the kernel: nodes here can't answer on UDP port {}, where "
                              "the accepting host asks",
                              config.discovery_port),
                  "See the lines above.");
    return;
  }
  if (!node.good) {
    findings.fail(kCheck, subject, "stays on the kernel: no node is known there",
                  "See the line above.");
    return;
  }
  std::string const device = shared_memory ? "shared memory" : "verbs, " + machine.verbs_port;
  std::string const way_back =
      node.here ? ""
                : fmt::format(" and if that host, too, has a device and gets an answer from {}",
                              engine::ip_text(*local));
  findings.ok(kCheck, subject,
              fmt::format("can leave the kernel by {}, if the process that listens there is under "
                          "Sidestep (known only once it is connected){}{}",
                          device, way_back, proviso));
}

std::string subject_of(std::string const& host, Address const& address) {
  std::string const name = config::text::printable(host);
  std::string const ip = engine::ip_text(address);
  return ip == name ? name : fmt::format("{} ({})", name, ip);
}

void check_target(Machine const& machine, Target const& target, Findings& findings) {
  constexpr std::string_view kCheck = "host";
  Resolved const resolved = resolve(target.host);
  if (!resolved.fault.empty()) {
    findings.fail(kCheck, config::text::printable(target.host), "not known: " + resolved.fault,
                  "Correct the name, or how names are resolved here.");
    return;
  }
  auto const outcomes = ask(machine, resolved.addresses);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    Address remote = resolved.addresses[i];
    Outcome const& node = outcomes[i];
    findings.add(node.good ? Verdict::ok : Verdict::fail, kCheck, subject_of(target.host, remote),
                 node.found, node.advice);
    if (!target.port) continue;
    remote.port = *target.port;
    check_stream(machine, engine::to_string(remote), remote, node, findings);
  }
}

}  // namespace

void check_nodes(Machine const& machine, Findings& findings) {
  constexpr std::string_view kCheck = "nodes";
  std::string const& nodes = machine.config.nodes;
  if (nodes.empty()) return;
  auto const hosts = config::node_hosts(nodes);
  if (hosts.empty())
    findings.warn(
        kCheck, "", "SIDESTEP_NODES names no host: " + config::text::printable(nodes),
        "Write host,host,... or @FILE, where FILE can be read and has one host per line.");
  std::vector<Address> addresses;
  std::vector<std::string> subjects;
  for (std::string const& host : hosts) {
    Resolved const resolved = resolve(host);
    if (!resolved.fault.empty())
      findings.warn(kCheck, host, "not known: " + resolved.fault,
                    "Correct the name in SIDESTEP_NODES, or how names are resolved here.");
    for (Address const& address : resolved.addresses) {
      subjects.push_back(subject_of(host, address));
      addresses.push_back(address);
    }
  }
  auto const outcomes = ask(machine, addresses);
  for (size_t i = 0; i < outcomes.size(); ++i)
    findings.add(outcomes[i].good ? Verdict::ok : Verdict::warn, kCheck, subjects[i],
                 outcomes[i].found, outcomes[i].advice);
}

void check_targets(Machine const& machine, std::vector<std::string> const& targets,
                   Findings& findings) {
  for (std::string const& word : targets) {
    if (auto const target = parse_target(word)) {
      check_target(machine, *target, findings);
    } else {
      findings.fail("host", config::text::printable(word), "is neither HOST nor HOST:PORT",
                    "Write a name or an address; put an IPv6 address with a port in brackets.");
    }
  }
}

}  // namespace sidestep::tool

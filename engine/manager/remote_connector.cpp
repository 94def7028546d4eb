#include "engine/manager/remote_connector.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/random.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;
// Sent at 0, 50, 150, 350, 750, 1550 and 3150 ms, given up at 6.35 s.
constexpr uint64_t kFirstWait = 50 * kMillisecond;
constexpr unsigned kTries = 7;

uint64_t wait_after(unsigned tries) noexcept {
  return kFirstWait << (tries - 1);
}

}  // namespace

void RemoteConnector::Remote::become_idle() noexcept {
  half.reset();
  connection = nullptr;
  retry_at = 0;
  state = State::idle;
}

void RemoteConnector::Remote::become_accepting(Connection& made) noexcept {
  assert(state == State::idle);
  connection = &made;
  tries = 1;
  retry_at = now_ns() + wait_after(tries);
  state = State::accepting;
}

void RemoteConnector::Remote::become_joined(Connection& used) noexcept {
  assert(state == State::idle || (state == State::accepting && connection == &used));
  connection = &used;
  retry_at = 0;
  state = State::joined;
}

void RemoteConnector::Remote::check() const noexcept {
  assert((half != nullptr) == (state == State::connecting));
  assert((connection != nullptr) == is_connected());
  assert((retry_at != 0) == (state == State::connecting || state == State::accepting));
  assert(waiting.empty() || state != State::joined);
}

RemoteConnector::Remote* RemoteConnector::find(uint64_t incarnation) noexcept {
  const auto found = remotes_.find(incarnation);
  if (found == remotes_.end()) return nullptr;
  found->second.check();
  return &found->second;
}

RemoteConnector::Remote* RemoteConnector::find(uint64_t incarnation,
                                               const sockaddr_in6& from) noexcept {
  Remote* const remote = find(incarnation);
  if (remote == nullptr ||
      std::memcmp(&from.sin6_addr, remote->peer.name.host.ip.data(), sizeof from.sin6_addr) != 0)
    return nullptr;
  return remote;
}

uint32_t RemoteConnector::meet(uint64_t incarnation, uint16_t nid, const Discovery::Ip& ip,
                               const Discovery::Ip& own) {
  if (const Remote* const known = find(incarnation)) return known->peer.name.number;
  if (remotes_.size() >= PeerName::kRemotePeers / 2)
    throw std::length_error("too many nodes on other hosts");
  do last_remote_ = (last_remote_ + 1) % PeerName::kRemotePeers;
  while (remote_by_number_.count(PeerName::kRemotePeers + last_remote_) != 0);
  Remote& remote = remotes_.try_emplace(incarnation, node_, port_).first->second;
  remote.peer.incarnation = incarnation;
  remote.peer.name.number = PeerName::kRemotePeers + last_remote_;
  remote.peer.name.nid = nid;
  remote.peer.name.host.ip = ip;
  remote.peer.own_ip = own;
  remote_by_number_[remote.peer.name.number] = incarnation;
  if (nid == node_.nid) {
    node_.progress.counters().nid_conflicts.add();
    log(node_.config.nid != 0 ? LogLevel::warn : LogLevel::info,
        "node %u of %s has the NID of this one; they are told apart by other means, but logs and "
        "SIDESTEP_NID should not mix them up",
        nid, ip_text(remote.peer.name.host).c_str());
  }
  return remote.peer.name.number;
}

void RemoteConnector::bind_when_connected(uint32_t peer, const StreamPair& pair) {
  Remote& remote = remotes_.at(remote_by_number_.at(peer));
  remote.check();
  if (remote.state == State::joined) return undecided_.bind(*remote.connection, pair);
  remote.waiting.push_back(pair);
  connect_to(remote);
}

bool RemoteConnector::fail_connection(const Connection& connection, const char* why) {
  const auto number = remote_by_number_.find(connection.peer().number);
  if (number == remote_by_number_.end()) return false;
  Remote& remote = remotes_.at(number->second);
  if (remote.connection != &connection) return false;
  fail(remote, why);
  return true;
}

void RemoteConnector::lose_all(const char* why) {
  for (auto& [incarnation, remote] : remotes_)
    if (remote.is_connected()) lose(remote, why, PeerProcess::may_live);
}

DiscoveryHeader RemoteConnector::header_to(const Remote& remote) const noexcept {
  return header_between(node_, remote.peer, remote.attempt);
}

// ---- initiator

void RemoteConnector::connect_to(Remote& remote) {
  if (remote.state != State::idle) return;
  Device* const device = node_.device_for_others();
  if (device == nullptr) {
    const Devices& devices = node_.progress.devices();
    const bool may_return = devices.may_return(devices.kind_for(false, false));
    return give_up(remote, Reason::no_remote_device, may_return ? Until::later : Until::ever);
  }
  remote.half = room_.begin_half(*device);
  if (remote.half == nullptr) return give_up(remote, Reason::no_room, Until::later);
  remote.device = device;
  remote.state = State::connecting;
  remote.tries = 0;
  remote.number = ++last_connect_;
  remote.attempt = random_number();
  send_connect(remote);
}

void RemoteConnector::send_connect(Remote& remote) {
  ++remote.tries;
  remote.retry_at = now_ns() + wait_after(remote.tries);
  const datagram::Connect request{remote.half->offer().address, remote.number};
  port_.ask(remote.peer.name.host, remote.peer.own_ip, {header_to(remote), request}, remote.tries);
}

void RemoteConnector::on_accept(const DiscoveryMessage& message, const sockaddr_in6& from) {
  Remote* const remote = find(message.header.from);
  if (remote == nullptr || remote->attempt != message.header.question) return;
  if (remote->state == State::connecting) {
    const auto half = std::move(remote->half);
    remote->become_idle();
    auto endpoint = half->complete({message.as<datagram::Accept>().endpoint, -1, -1});
    if (endpoint == nullptr) {
      port_.answer(from, remote->peer.own_ip, {header_to(*remote), datagram::Refuse{}});
      return give_up(*remote, Reason::not_connected);
    }
    remote->become_joined(take_into_use(*remote, *remote->device, std::move(endpoint)));
    // A late copy of the request that the peer has dropped must not break this connection.
    remote->their_number = std::max(remote->their_number, remote->dropped_number);
  }
  if (!remote->is_connected()) return;
  port_.answer(from, remote->peer.own_ip, {header_to(*remote), datagram::Ready{}});
  bind_waiting(*remote);
}

void RemoteConnector::on_end(const DiscoveryMessage& message, const sockaddr_in6& from) {
  Remote* const remote = find(message.header.from, from);
  if (remote == nullptr) return;
  const bool gone = message.type() == DiscoveryType::gone;
  const Reason reason = gone ? Reason::peer_gone : Reason::peer_refused;
  const char* const why = text_of(reason);
  const PeerProcess peer = gone ? PeerProcess::ended : PeerProcess::may_live;
  if (gone) remote->failures.end(message.header.question, why, peer);
  if (remote->attempt != message.header.question) return;
  // Both ends are joined: a copy of an old datagram must not separate them. The device reports a
  // peer that has gone.
  if (remote->state == State::joined) return;
  if (remote->state == State::accepting) lose(*remote, why, peer);
  give_up(*remote, reason, gone ? Until::ever : Until::later);
}

// ---- acceptor

void RemoteConnector::on_connect(const DiscoveryMessage& message, const sockaddr_in6& from) {
  // The two nodes have met already: each has been told that the other holds an end of one of its
  // streams, or nobody has any use for a connection. The address is not compared: the first streams
  // of the two may have had several, in another order there. No others know the node's incarnation.
  const auto request = message.as<datagram::Connect>();
  const uint64_t attempt = message.header.question;
  Remote* const remote = find(message.header.from);
  if (remote == nullptr) return node_.progress.counters().unproven.add();
  // An old number means a copy that was long on its way, or that somebody has kept.
  const bool stands = request.number == remote->their_number && attempt == remote->attempt;
  if (request.number <= remote->their_number && !stands) return;
  // The request was refused, or the connection that it made has failed since.
  if (stands && !remote->is_connected())
    return port_.answer(from, remote->peer.own_ip, {header_to(*remote), datagram::Refuse{}});
  if (remote->state == State::connecting) {
    if (node_.incarnation < remote->peer.incarnation) {  // ours counts, unless nothing comes of it
      remote->dropped_number = request.number;
      return;
    }
    remote->become_idle();
  }
  if (!stands) {
    // A connection that was there has failed at the peer, or the peer would not ask.
    if (remote->is_connected()) fail(*remote, "the peer node connects anew");
    remote->attempt = attempt;
    remote->their_number = request.number;
    if (!accept(*remote, request.endpoint, from)) return;
  }
  remote->reply_to = from;
  send_accept(*remote);
}

bool RemoteConnector::accept(Remote& remote, const EndpointAddress& offered,
                             const sockaddr_in6& from) {
  Device* const device = node_.device_for_others();
  const auto half = device != nullptr ? room_.begin_half(*device) : nullptr;
  auto endpoint = half != nullptr ? half->complete({offered, -1, -1}) : nullptr;
  if (endpoint == nullptr) {
    port_.answer(from, remote.peer.own_ip, {header_to(remote), datagram::Refuse{}});
    give_up(remote, Reason::not_connected);
    return false;
  }
  remote.answer = half->offer().address;
  remote.become_accepting(take_into_use(remote, *device, std::move(endpoint)));
  return true;
}

void RemoteConnector::send_accept(Remote& remote) {
  port_.answer(remote.reply_to, remote.peer.own_ip,
               {header_to(remote), datagram::Accept{remote.answer}});
}

void RemoteConnector::on_ready(const DiscoveryMessage& message) {
  Remote* const remote = find(message.header.from);
  if (remote == nullptr || remote->attempt != message.header.question ||
      remote->state != State::accepting)
    return;
  remote->become_joined(*remote->connection);
  bind_waiting(*remote);
}

// ---- both

Connection& RemoteConnector::take_into_use(const Remote& remote, Device& device,
                                           std::unique_ptr<Endpoint> endpoint) {
  const std::string host = ip_text(remote.peer.name.host);  // may throw: before it is in use
  auto connection = std::make_unique<Connection>(node_.progress.posting(), remote.peer.name, device,
                                                 std::move(endpoint));
  Connection& made = *connection;
  node_.progress.add(std::move(connection));
  log(LogLevel::info, "connected to node %u of %s by %s", remote.peer.name.nid, host.c_str(),
      device.name());
  return made;
}

void RemoteConnector::bind_waiting(Remote& remote) {
  const std::vector<StreamPair> waiting = std::move(remote.waiting);
  remote.waiting.clear();
  for (const StreamPair& stream : waiting) undecided_.bind(*remote.connection, stream);
}

void RemoteConnector::give_up(Remote& remote, Reason reason, Until until) {
  assert(!remote.is_connected());
  remote.become_idle();
  const std::vector<StreamPair> waiting = std::move(remote.waiting);
  remote.waiting.clear();
  for (const StreamPair& stream : waiting)
    undecided_.stay_on_kernel(stream.stream, stream.generation, reason, until);
}

void RemoteConnector::lose(Remote& remote, const char* why, PeerProcess peer) {
  Connection& connection = *remote.connection;
  remote.become_idle();
  node_.streams.lose_connection(connection, why, peer);
  hosts_.ask_soon(remote.peer.name.host.ip, now_ns());
}

void RemoteConnector::fail(Remote& remote, const char* why) {
  Connection& connection = *remote.connection;
  remote.become_idle();  // first: a connection must not fail twice, even if add() throws
  remote.failures.add(connection, remote.attempt, why);
}

void RemoteConnector::on_failed(const DiscoveryMessage& message, const sockaddr_in6& from) {
  Remote* const remote = find(message.header.from);
  if (remote == nullptr)
    return port_.answer(from, {}, {message.header.of_answer(), datagram::Gone{}});
  if (remote->is_connected() && remote->attempt == message.header.question)
    fail(*remote, "it has failed at the peer node");
  remote->failures.on_failed(message, from);
}

void RemoteConnector::on_failed_ack(const DiscoveryMessage& message) {
  if (Remote* const remote = find(message.header.from)) remote->failures.on_failed_ack(message);
}

void RemoteConnector::take_leave(bool said_all) {
  for (const auto& [incarnation, remote] : remotes_) {
    if (!remote.is_connected()) continue;
    const datagram::Leave leave{said_all ? 1U : 0U};
    // Sent twice: nobody is left to repeat it if it is lost, and the other socket may reach another
    // node.
    for (const unsigned tries : {1U, 2U})
      port_.ask(remote.peer.name.host, remote.peer.own_ip, {header_to(remote), leave}, tries);
  }
}

void RemoteConnector::on_leave(const DiscoveryMessage& message, const sockaddr_in6& from) {
  Remote* const remote = find(message.header.from, from);
  if (remote == nullptr) return;
  constexpr const char* kWhy = "the peer process ended";
  const PeerProcess peer =
      message.as<datagram::Leave>().said_all == 1 ? PeerProcess::left : PeerProcess::ended;
  remote->failures.end_all(kWhy, peer);
  if (remote->is_connected()) lose(*remote, kWhy, peer);
  give_up(*remote, Reason::peer_gone);
}

void RemoteConnector::forget_idle(uint64_t now) {
  // Longer than a peer repeats any of its datagrams, and than one may be under way; see kPatience
  // in remote_failures.cpp. A peer that is forgotten is told that this node does not know it.
  constexpr uint64_t kIdle = 180'000 * kMillisecond;
  if (now < forget_at_) return;
  forget_at_ = now + kIdle / 8;
  for (auto entry = remotes_.begin(); entry != remotes_.end();) {
    Remote& remote = entry->second;
    const bool idle =
        remote.state == State::idle && remote.waiting.empty() && remote.failures.empty();
    if (!idle) {
      remote.idle_since = 0;
    } else if (remote.idle_since == 0) {
      remote.idle_since = now;
    } else if (now - remote.idle_since >= kIdle) {
      remote_by_number_.erase(remote.peer.name.number);
      entry = remotes_.erase(entry);
      continue;
    }
    ++entry;
  }
}

void RemoteConnector::retry(uint64_t now) {
  for (auto& [incarnation, remote] : remotes_) {
    remote.check();
    remote.failures.retry(now);
    if (remote.retry_at == 0 || remote.retry_at > now) continue;
    // A peer that sends over the connection has joined it, even if no datagram came that says so.
    if (remote.state == State::accepting && remote.connection->received.get() != 0) {
      remote.become_joined(*remote.connection);
      bind_waiting(remote);
    } else if (remote.tries >= kTries) {
      if (remote.state == State::accepting) fail(remote, "the peer node did not join it");
      give_up(remote, Reason::peer_silent);
    } else if (remote.state == State::connecting) {
      send_connect(remote);
    } else {
      ++remote.tries;
      remote.retry_at = now + wait_after(remote.tries);
      send_accept(remote);
    }
  }
}

uint64_t RemoteConnector::next_at() const noexcept {
  uint64_t next = 0;
  for (const auto& [incarnation, remote] : remotes_)
    for (const uint64_t at : {remote.retry_at, remote.failures.next_at()})
      if (at != 0 && (next == 0 || at < next)) next = at;
  return next;
}

}  // namespace sidestep::engine

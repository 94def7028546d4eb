#include "engine/manager/local_connector.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/stream_lane.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {

void LocalConnector::bind_when_connected(uint16_t nid, const StreamPair& pair) {
  if (Connection* connection = node_.progress.connections().find(nid, 0))
    return bind_to(nid, *connection, pair);
  pending_[{nid, uint16_t{0}}].streams.push_back(pair);
  connect_to(nid, 0);
}

void LocalConnector::bind_to(uint16_t nid, Connection& connection, const StreamPair& pair) {
  uint16_t lane = 0;
  if (connection.device().kind() == DeviceKind::shm && !connection.is_own()) {
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    const Stream* const stream = node_.streams.table().find(pair.stream, pair.generation);
    if (stream != nullptr) lane = lane_of(stream->tuple());
  }
  if (lane == connection.lane()) return undecided_.bind(connection, pair);
  if (Connection* other = node_.progress.connections().find(nid, lane))
    return undecided_.bind(*other, pair);
  pending_[{nid, lane}].streams.push_back(pair);
  connect_to(nid, lane);
}

void LocalConnector::connect_to(uint16_t nid, uint16_t lane) {
  Pending& pending = pending_[{nid, lane}];
  if (pending.half != nullptr) return;
  const DeviceKind kind = node_.progress.devices().kind_for(nid == node_.nid, true);
  Device* const device = node_.progress.device_for(kind);
  // Perhaps only a descriptor is missing now.
  if (device == nullptr)
    return give_up(nid, lane, Reason::no_device,
                   kind == DeviceKind::none ? Until::ever : Until::later);
  if (nid == node_.nid) return connect_to_self(*device);
  int error = 0;
  Link* link = links_.to(nid, error);
  if (link == nullptr) {
    const bool is_short = Links::is_out_of_resources(error);
    return give_up(nid, lane, is_short ? Reason::no_room : Reason::peer_gone,
                   is_short ? Until::later : Until::ever);
  }
  pending.half = room_.begin_half(*device);
  if (pending.half == nullptr) return give_up(nid, lane, Reason::no_room, Until::later);
  pending.device = device;
  pending.link = link->fd;
  const Offer offer = pending.half->offer();
  error = links_.send(*link, control::Connect{offer.address, lane}, offer.memory_fd,
                      lane == 0 ? offer.doorbell_fd : -1);
  if (error == -EPIPE || error == -ECONNRESET) {
    give_up(nid, lane, Reason::peer_gone);
  } else if (error < 0) {
    give_up(nid, lane, Reason::peer_silent);
  }
}

void LocalConnector::connect_to_self(Device& device) {
  auto half = device.begin();
  if (half == nullptr) return give_up(node_.nid, 0, Reason::no_room, Until::later);
  Offer offer = half->offer();
  offer.memory_fd = sys::fcntl(offer.memory_fd, F_DUPFD_CLOEXEC, 0);
  offer.doorbell_fd = sys::fcntl(offer.doorbell_fd, F_DUPFD_CLOEXEC, 0);
  auto endpoint = half->complete(offer);
  if (endpoint == nullptr) return give_up(node_.nid, 0, Reason::no_room, Until::later);
  const PeerName self{node_.nid, node_.nid, static_cast<int>(getpid()), {}};
  auto connection =
      std::make_unique<Connection>(node_.progress.posting(), self, device, std::move(endpoint));
  Connection& made = *connection;
  node_.progress.add(std::move(connection));
  bind_waiting(node_.nid, made);
}

bool LocalConnector::has_doorbell(const Link& link) noexcept {
  Connection* const first = link.connections[0];
  return first != nullptr && first->device().kind() == DeviceKind::shm;
}

Connection* LocalConnector::establish(Link& link, Device& device, HalfOpen& half, uint16_t lane,
                                      const EndpointAddress& address, Received& received) {
  const Offer peer{address, received.fds[0], received.fds[1],
                   lane != 0 && has_doorbell(link) ? &link.connections[0]->endpoint() : nullptr};
  received.fds[0] = received.fds[1] = -1;
  auto endpoint = half.complete(peer);
  if (endpoint == nullptr || !node_.progress.connections().has_room()) return nullptr;
  endpoint->lane = lane;
  const PeerName peer_name{link.nid, link.nid, link.pid, {}};
  auto connection = std::make_unique<Connection>(node_.progress.posting(), peer_name, device,
                                                 std::move(endpoint));
  Connection* made = connection.get();
  link.connections[made->lane()] = made;
  node_.progress.add(std::move(connection));
  log(lane == 0 ? LogLevel::info : LogLevel::debug, "connected to node %u (pid %d) by %s, lane %u",
      link.nid, link.pid, made->device().name(), lane);
  return made;
}

void LocalConnector::on_connect(Link& link, Received& received) {
  const auto request = received.message.as<control::Connect>();
  const uint16_t lane = request.lane;
  const auto pending = pending_.find({link.nid, lane});
  // If both sides ask at once, the request of the lower NID counts.
  const bool ours_counts =
      pending != pending_.end() && pending->second.half != nullptr && node_.nid < link.nid;
  const auto kind = static_cast<DeviceKind>(request.endpoint.device);
  const bool has_lanes = kind == DeviceKind::shm;
  Device* const device = node_.progress.devices().allows(kind) && lane < (has_lanes ? kLanes : 1)
                             ? node_.progress.device_for(kind)
                             : nullptr;
  if (link.nid == 0 || ours_counts || device == nullptr || (lane != 0 && !has_doorbell(link)) ||
      node_.progress.connections().find(link.nid, lane) != nullptr)
    return refuse(link, lane);
  auto half = room_.begin_half(*device);
  if (half == nullptr) return refuse(link, lane);
  // The descriptors must be on their way before complete() closes this side's.
  const Offer offer = half->offer();
  const int memory = sys::fcntl(offer.memory_fd, F_DUPFD_CLOEXEC, 0);
  if (memory < 0 && offer.memory_fd >= 0) return refuse(link, lane);
  Connection* made = establish(link, *device, *half, lane, request.endpoint, received);
  const int error = made != nullptr ? links_.send(link, control::Accept{offer.address, lane},
                                                  memory, lane == 0 ? offer.doorbell_fd : -1)
                                    : 0;
  if (memory >= 0) sys::close(memory);
  if (made == nullptr) return refuse(link, lane);
  // The peer would never learn of the connection.
  if (error < 0) return links_.close(link.fd, std::strerror(-error));
  bind_waiting(link.nid, *made);
}

void LocalConnector::refuse(Link& link, uint16_t lane) {
  links_.send(link, control::Refuse{lane});
}

void LocalConnector::on_accept(Link& link, Received& received) {
  const auto answer = received.message.as<control::Accept>();
  const uint16_t lane = answer.lane;
  const auto pending = pending_.find({link.nid, lane});
  if (pending == pending_.end() || pending->second.half == nullptr ||
      pending->second.link != link.fd)
    return;
  Connection* made = establish(link, *pending->second.device, *pending->second.half, lane,
                               answer.endpoint, received);
  if (made != nullptr) return bind_waiting(link.nid, *made);
  // The peer already has the connection, and would wait for reports of its streams.
  send_failed(link, lane, {});
  give_up(link.nid, lane, Reason::not_connected);
}

void LocalConnector::on_refuse(const Link& link, uint16_t lane) {
  const auto pending = pending_.find({link.nid, lane});
  if (pending == pending_.end()) return;
  if (Connection* connection = node_.progress.connections().find(link.nid, lane))
    return bind_waiting(link.nid, *connection);
  if (node_.nid < link.nid) return give_up(link.nid, lane, Reason::peer_refused, Until::later);
  // The peer's own request is under way and serves both; its arrival binds what waits here.
  pending->second.half.reset();
}

void LocalConnector::give_up(uint16_t nid, uint16_t lane, Reason reason, Until until) {
  const auto pending = pending_.find({nid, lane});
  if (pending == pending_.end()) return;
  const std::vector<StreamPair> waiting = std::move(pending->second.streams);
  pending_.erase(pending);
  for (const StreamPair& stream : waiting)
    undecided_.stay_on_kernel(stream.stream, stream.generation, reason, until);
}

void LocalConnector::fail_connection(Connection& connection, const char* why) {
  const std::vector<StreamReport> reports = node_.streams.fail_connection(connection, why);
  if (connection.peer().number == node_.nid)
    return node_.streams.fail_over_streams(connection, reports);
  auto& links = links_.all();
  const auto link = std::find_if(links.begin(), links.end(), [&](const auto& entry) {
    return entry.second.connections[connection.lane()] == &connection;
  });
  if (link != links.end() && send_failed(link->second, connection.lane(), reports)) return;
  if (link != links.end()) link->second.connections[connection.lane()] = nullptr;
  node_.streams.lose_connection(connection, "the peer node does not answer", PeerProcess::may_live);
}

bool LocalConnector::send_failed(Link& link, uint32_t lane, std::span<const StreamReport> reports) {
  const int fd = write_reports(reports);
  // Without a document, the peer hears of no stream, and all of them end with an error.
  const bool sent =
      links_.send(link, control::Failed{static_cast<uint16_t>(lane)}, fd) >= 0 && fd >= 0;
  if (fd >= 0) sys::close(fd);
  return sent;
}

void LocalConnector::on_failed(Link& link, const Received& received) {
  const uint16_t lane = received.message.as<control::Failed>().lane;
  if (lane >= kLanes) return;
  Connection*& connection = link.connections[lane];
  if (connection == nullptr) return;
  const std::vector<StreamReport> reports = read_reports(received.fds[0]);
  if (!connection->is_closed()) fail_connection(*connection, "it has failed at the peer node");
  if (connection == nullptr) return;
  Connection& failed = *std::exchange(connection, nullptr);  // a new one can be made over this link
  node_.streams.fail_over_streams(failed, reports);
}

void LocalConnector::bind_waiting(uint16_t nid, Connection& connection) {
  const auto pending = pending_.find({nid, static_cast<uint16_t>(connection.lane())});
  if (pending == pending_.end()) return;
  const std::vector<StreamPair> waiting = std::move(pending->second.streams);
  pending_.erase(pending);
  for (const StreamPair& stream : waiting) bind_to(nid, connection, stream);
}

void LocalConnector::on_link_end(const Link& link, const char* why, PeerProcess peer) {
  for (Connection* const connection : link.connections)
    if (connection != nullptr) node_.streams.lose_connection(*connection, why, peer);
  for (uint16_t lane = 0; lane < kLanes; ++lane) {
    const auto pending = pending_.find({link.nid, lane});
    if (pending != pending_.end() && pending->second.link == link.fd)
      give_up(link.nid, lane, Reason::peer_gone);
  }
}

void LocalConnector::take_leave() {
  for (auto& [fd, link] : links_.all())
    if (link.connections[0] != nullptr && !link.connections[0]->endpoint().is_ordered())
      links_.send(link, control::Leave{});
}

}  // namespace sidestep::engine

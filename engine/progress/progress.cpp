// The devices and connections of a node: how they come into use and out of it.
#include "engine/progress/progress.hpp"

#include <algorithm>
#include <mutex>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/wakeable.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/progress/alarm.hpp"

namespace sidestep::engine {

Device* Progress::device_for(DeviceKind kind) noexcept {
  // Streams that move may need a second descriptor in reserve in order to end.
  if (kind == DeviceKind::none || !thread_.open() ||
      !private_fd_make_reserve(first_alarm(), kMostInReserve))
    return nullptr;
  quota_.open();
  bool added = false;
  Device* const device = devices_.get(kind, now_ns(), added);
  if (!added) return device;
  open_more_alarms();
  thread_.watch_device(*device);
  return device;
}

bool Progress::has_room(const Device& device, Connection*& oldest) noexcept {
  // Nothing is under way on a connection that has been idle for this long. This matters because a
  // stream that ended a moment ago, with bytes under way, could not go on over its anchor.
  constexpr uint64_t kIdle = 100'000'000;
  const uint64_t now = now_ns();
  oldest = nullptr;
  uint32_t live = 0;
  const std::lock_guard guard(recv_lock_);
  for (const auto& connection : connections_.all()) {
    if (&connection->device() != &device || connection->is_closed()) continue;
    ++live;
    const bool idle = connection->uses() == connection->uses_seen &&
                      now >= connection->used_at + kIdle &&  // which may be after `now`
                      connection->orb().posted() == connection->orb().back();
    if (idle && (oldest == nullptr || connection->used_at < oldest->used_at))
      oldest = connection.get();
  }
  return live < device.max_connections();
}

void Progress::add(std::unique_ptr<Connection> connection) noexcept {
  {
    const ReceiveLockGuard guard(recv_lock_);
    connection->used_at = now_ns();
    recv_lock_.open_up_to(connection->lane() + 1);
    connection->device().add(connection->endpoint());
    ++connection->device().lanes[connection->lane()].endpoints;
    recv_lock_.set_used(connection->lane(), true);
    connections_.put(std::move(connection));
  }
  counters().connections_opened.add();
}

void Progress::close_locked(Connection& connection, const char* why) noexcept {
  // Everything that was confirmed to the peer is in memory; deliver it first.
  connection.endpoint().stop();
  drain_all_locked();
  log(LogLevel::info, "connection to node %u (pid %d) is gone: %s", connection.peer().nid,
      connection.peer().pid, why);
  connection.device().remove(connection.endpoint());
  const uint32_t lane_number = connection.lane();
  --connection.device().lanes[lane_number].endpoints;
  recv_lock_.set_used(lane_number,
                      std::any_of(devices_.begin(), devices_.end(), [&](const auto& device) {
                        return device->lanes[lane_number].endpoints != 0;
                      }));
  connection.orb_end = connection.orb().close();
  connections_.retire(connection);
  connection.forget_space();
  counters().connections_lost.add();
  closed_work_requests_.add(connection.work_requests.get());
  closed_fragments_.add(connection.fragments.get());
}

void Progress::report_broken(const Endpoint& endpoint) noexcept {
  jobs_.report_broken(connection_of(endpoint).number(), endpoint);
}

void Progress::take_up_set_aside() noexcept {
  WakeBatch wake_ups_after_the_lock;
  const std::unique_lock lock(recv_lock_, std::try_to_lock);
  if (lock) deferred_.run_locked(true);
}

Progress::Received Progress::received() noexcept {
  Received sum;
  for (const Lane& lane : recv_lock_.open()) {
    sum.polls += lane.polls.get();
    sum.receives += lane.receives.get();
    sum.fragments += lane.fragments_received.get();
  }
  return sum;
}

Progress::Posted Progress::posted_locked() noexcept {
  Posted sum{closed_work_requests_.get(), closed_fragments_.get()};
  for (const auto& connection : connections_.all()) {
    sum.work_requests += connection->work_requests.get();
    sum.fragments += connection->fragments.get();
  }
  return sum;
}

}  // namespace sidestep::engine

#include "engine/manager/connection_room.hpp"

#include "engine/progress/progress.hpp"

namespace sidestep::engine {

std::unique_ptr<HalfOpen> ConnectionRoom::begin_half(Device& device) {
  if (!make(device)) return nullptr;
  auto half = device.begin();
  if (half != nullptr) return half;
  // Only one makes way: its memory comes back when both ends have reported what they have, and
  // whatever waits for that memory tries again later.
  // Inside a host, over shared memory, no connection makes way.
  Connection* oldest = nullptr;
  if (node_.progress.has_room(device, oldest) && oldest != nullptr &&
      !oldest->endpoint().is_ordered())
    make_way(*oldest, "it was used least recently, and no memory is left for another");
  return nullptr;
}

bool ConnectionRoom::make(const Device& device) {
  Connection* oldest = nullptr;
  while (!node_.progress.has_room(device, oldest)) {
    if (oldest == nullptr) return false;
    make_way(*oldest, "it was used least recently, and SIDESTEP_CONNECTIONS is reached");
  }
  return true;
}

void ConnectionRoom::make_way(Connection& connection, const char* why) {
  connection.makes_way = true;
  connection.down_reason = Reason::made_way;
  node_.progress.counters().connections_evicted.add();
  failer_.fail_connection(connection, why);
}

}  // namespace sidestep::engine

#include "engine/connection/connection_table.hpp"

namespace sidestep::engine {

ConnectionTable::ConnectionTable() : slots_(make_zeroed<std::atomic<Connection*>>(kSlots)) {}

Connection* ConnectionTable::find(uint32_t peer, uint32_t lane) const noexcept {
  const auto found = by_peer_.find({peer, lane});
  return found != by_peer_.end() ? found->second : nullptr;
}

void ConnectionTable::put(std::unique_ptr<Connection> connection) {
  Connection& added = *connection;
  by_peer_[{added.peer().number, added.lane()}] = &added;
  free_.reserve(used_ + 1);
  all_.push_back(std::move(connection));
  added.number_ = free_.empty() ? used_++ : free_.back();
  if (!free_.empty()) free_.pop_back();
  slots_[added.number_].store(&added, std::memory_order_release);
}

void ConnectionTable::retire(Connection& connection) noexcept {
  if (find(connection.peer().number, connection.lane()) == &connection)
    by_peer_.erase({connection.peer().number, connection.lane()});
  slots_[connection.number()].store(nullptr, std::memory_order_seq_cst);
  connection.set_dead();
}

void ConnectionTable::sweep() noexcept {
  // The acquire in this load pairs with the visitor's release: the visitor is done.
  if (visitors_.load(std::memory_order_seq_cst) != 0) return;
  std::erase_if(all_, [this](const std::unique_ptr<Connection>& connection) {
    const bool ends =
        connection->is_closed() && !connection->awaits_report && connection->stream_count() == 0;
    if (ends) free_.push_back(connection->number());  // has room: see put()
    return ends;
  });
}

}  // namespace sidestep::engine

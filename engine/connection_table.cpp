#include "engine/connection_table.hpp"

namespace sidestep::engine {

ConnectionTable::ConnectionTable()
    : slots_(make_zeroed<std::atomic<Connection*>>(PeerName::kPeers)) {}

void ConnectionTable::put(std::unique_ptr<Connection> connection) {
  Connection* raw = connection.get();
  all_.push_back(std::move(connection));
  slots_[raw->peer().number].store(raw, std::memory_order_release);
}

void ConnectionTable::retire(Connection& connection) noexcept {
  if (get(connection.peer().number) == &connection)
    slots_[connection.peer().number].store(nullptr, std::memory_order_seq_cst);
  connection.set_dead();
}

void ConnectionTable::sweep() noexcept {
  // acquire in it pairs with the visitor's release: its use is over.
  if (visitors_.load(std::memory_order_seq_cst) != 0) return;
  std::erase_if(all_, [](const std::unique_ptr<Connection>& connection) {
    return connection->is_dead() && !connection->awaits_report && connection->stream_count() == 0;
  });
}

}  // namespace sidestep::engine

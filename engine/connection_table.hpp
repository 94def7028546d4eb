#pragma once
/// Connections by the number of the peer (PeerName). get() takes no lock (Ibdxnet, section 7.1:
/// threads that find a connection must not pay for those that are being made); changes are made by
/// the manager under the node's receive lock.
#include <atomic>
#include <memory>
#include <vector>

#include "engine/connection.hpp"

namespace sidestep::engine {

class ConnectionTable {
 public:
  ConnectionTable();

  /// acquire pairs with the release in put(): the connection is complete.
  Connection* get(uint32_t peer) const noexcept {
    return slots_[peer].load(std::memory_order_acquire);
  }

  void put(std::unique_ptr<Connection> connection);
  /// Takes it out of get()'s sight; the object lives on until its streams are gone.
  void retire(Connection& connection) noexcept;
  /// Frees retired connections that no stream refers to.
  void sweep() noexcept;

  /// Those in use and those retired.
  const std::vector<std::unique_ptr<Connection>>& all() const noexcept { return all_; }

 private:
  std::unique_ptr<std::atomic<Connection*>[], void (*)(void*)> slots_;
  std::vector<std::unique_ptr<Connection>> all_;
};

}  // namespace sidestep::engine

#pragma once
/// Connections by their own number, and by peer (PeerName) and lane. get() takes no lock (Ibdxnet,
/// section 7.1: threads that find a connection must not pay for those that are being made); the
/// manager makes changes under the node's receive lock.
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/base/zeroed_array.hpp"
#include "engine/connection/connection.hpp"

namespace sidestep::engine {

class ConnectionTable {
 public:
  ConnectionTable();

  static constexpr uint32_t kSlots = 1U << 17;

  /// acquire pairs with the release in put(): the connection is complete.
  Connection* get(uint32_t number) const noexcept {
    return slots_[number].load(std::memory_order_acquire);
  }
  /// Finds one that is in use. The manager's thread.
  Connection* find(uint32_t peer, uint32_t lane) const noexcept;
  /// True if there is room for another connection.
  bool has_room() const noexcept { return used_ < kSlots || !free_.empty(); }

  void put(std::unique_ptr<Connection> connection);
  /// Hides a connection from get(); the object lives on until its streams are gone.
  void retire(Connection& connection) noexcept;
  /// Frees retired connections that no stream refers to. If a Visitor may still have one, leaves
  /// this to a later sweep.
  void sweep() noexcept;

  /// Held around get() and the use of its result, by threads other than the manager's that do not
  /// hold the receive lock. For one step that does not wait.
  class Visitor {
   public:
    // seq_cst, both sides: either the sweep sees the visitor, or the visitor sees what retire() has
    // done.
    explicit Visitor(ConnectionTable& table) noexcept : table_(table) {
      table_.visitors_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Visitor() { table_.visitors_.fetch_sub(1, std::memory_order_release); }
    Visitor(const Visitor&) = delete;
    Connection* get(uint32_t number) const noexcept {
      return table_.slots_[number].load(std::memory_order_seq_cst);
    }

   private:
    ConnectionTable& table_;
  };

  /// All connections, in use or retired.
  const std::vector<std::unique_ptr<Connection>>& all() const noexcept { return all_; }

 private:
  ZeroedArray<std::atomic<Connection*>> slots_;
  std::vector<std::unique_ptr<Connection>> all_;
  std::map<std::pair<uint32_t, uint32_t>, Connection*> by_peer_;
  std::vector<uint32_t> free_;  // numbers; its capacity suffices for every one that is used
  uint32_t used_ = 0;
  std::atomic<int> visitors_{0};
};

}  // namespace sidestep::engine

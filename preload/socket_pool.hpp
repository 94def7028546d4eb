#pragma once
/// Memory for Socket objects, which is never given back: see FdTable. Thread-safe.
#include <atomic>

#include "preload/socket.hpp"

namespace sidestep::preload {

class SocketPool {
 public:
  /// Returns a socket with no references, or null when memory is exhausted.
  static Socket* take() noexcept;
  static void give_back(Socket& socket) noexcept;
  /// Empties the child's pool: the parent's sockets belong to an engine that does not run here.
  /// Those with unread bytes are found in the table.
  static void forget_after_fork() noexcept;

  /// Calls `visit` with every referenced socket, including those that have no descriptor left, but
  /// only a call inside. Returns false if another thread was just ending one.
  template <typename Function>
  static bool for_all(Function visit) noexcept {
    bool settled = true;
    // acquire pairs with the release in take(): the socket is constructed.
    Socket* socket = all_.load(std::memory_order_acquire);
    for (; socket != nullptr; socket = socket->next_made_) {
      if (socket->try_ref()) {
        visit(*socket);
        socket->unref();
      } else {
        // acquire pairs with the release in give_back(): everything that ends the socket is done.
        settled = settled && !socket->in_use_.load(std::memory_order_acquire);
      }
    }
    return settled;
  }

 private:
  static std::atomic<Socket*> all_;  // every socket that was ever made, linked by next_made_
};

}  // namespace sidestep::preload

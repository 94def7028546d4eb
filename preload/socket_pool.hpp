#pragma once
/// Memory for Socket objects that is never given back: see FdTable. Thread-safe.
#include <atomic>

#include "preload/socket.hpp"

namespace sidestep::preload {

class SocketPool {
 public:
  /// A socket with no references, or null when memory is exhausted.
  static Socket* take() noexcept;
  static void give_back(Socket& socket) noexcept;
  /// The child's pool starts empty: sockets of the parent belong to an engine that does not run
  /// here. Those that have unread bytes are found in the table.
  static void forget_after_fork() noexcept;

  /// Calls `visit` with every socket that is referred to, also those that have no descriptor any
  /// more and only a call inside. False if one was just being ended by another thread.
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
        // acquire pairs with the release in give_back(): what ending it did is done.
        settled = settled && !socket->in_use_.load(std::memory_order_acquire);
      }
    }
    return settled;
  }

 private:
  static std::atomic<Socket*> all_;  // every socket that was ever made, linked by next_made_
};

}  // namespace sidestep::preload

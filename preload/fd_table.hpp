#pragma once
/// Which descriptors are tracked TCP sockets.
///
/// A foreign descriptor costs one load and one branch. An entry is published with release and taken
/// out with an exchange; Socket objects come from a pool that is never given back to the system, so
/// that a thread that loaded an entry may always try to take a reference, and finds out whether it
/// was late.
#include <atomic>

#include "preload/socket.hpp"

namespace sidestep::preload {

class FdTable {
 public:
  /// The hard limit of nr_open on stock kernels; larger numbers are foreign.
  static constexpr int kSize = 1 << 20;

  static Socket* peek(int fd) noexcept {
    if (static_cast<unsigned>(fd) >= kSize) [[unlikely]]
      return nullptr;
    // acquire pairs with the release in set(): the socket is complete.
    return entries_[fd].load(std::memory_order_acquire);
  }
  static void set(int fd, Socket* socket) noexcept {
    entries_[fd].store(socket, std::memory_order_release);
  }
  static Socket* take(int fd) noexcept {
    return entries_[fd].exchange(nullptr, std::memory_order_acq_rel);
  }

 private:
  static std::atomic<Socket*> entries_[kSize];  // 8 MiB of zero pages, touched as far as used
};

/// A reference to a tracked socket for the length of one call; empty for a foreign descriptor.
class SocketRef {
 public:
  explicit SocketRef(int fd) noexcept {
    Socket* socket = FdTable::peek(fd);
    if (socket == nullptr) [[likely]]
      return;
    take(fd, socket);
  }
  /// To one that may have ended; empty then. The object may be in use for another by now.
  explicit SocketRef(Socket& socket) noexcept : socket_(socket.try_ref() ? &socket : nullptr) {}
  ~SocketRef() {
    if (socket_ != nullptr) socket_->unref();
  }
  SocketRef(const SocketRef&) = delete;
  explicit operator bool() const noexcept { return socket_ != nullptr; }
  Socket* operator->() const noexcept { return socket_; }
  Socket& operator*() const noexcept { return *socket_; }

 private:
  void take(int fd, Socket* socket) noexcept {
    // The socket may be closed, and even be in use for another connection, by the time it is
    // referenced.
    while (socket != nullptr) {
      if (socket->try_ref()) {
        if (FdTable::peek(fd) == socket) {
          socket_ = socket;
          return;
        }
        socket->unref();
      }
      socket = FdTable::peek(fd);
    }
  }
  Socket* socket_ = nullptr;
};

}  // namespace sidestep::preload

#pragma once
/// Which descriptors are tracked TCP sockets.
///
/// A foreign descriptor costs one load and one branch. An entry is published with release and taken
/// out with an exchange. Socket objects come from a pool that is never given back to the system:
/// a thread that has loaded an entry may always try to take a reference, and finds out whether it
/// was too late.
///
/// An entry says whether its socket may be held by a hazard guard (hazard_guard.hpp): ending a
/// socket that never was is cheaper, and most of a server's short connections are not worth one.
#include <atomic>
#include <cstdint>

#include "engine/base/descriptor_set.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/process_copy.hpp"
#include "preload/process.hpp"
#include "preload/socket.hpp"

namespace sidestep::preload {

class FdTable {
 public:
  /// Larger numbers are foreign.
  static constexpr int kSize = engine::DescriptorSet::kSize;

  static Socket* peek(int fd) noexcept { return reinterpret_cast<Socket*>(load(fd) & ~kGuards); }
  /// The same, but null also for a socket that no guard may hold.
  static Socket* peek_guardable(int fd) noexcept {
    const uintptr_t entry = load(fd);
    return (entry & kGuards) != 0 ? reinterpret_cast<Socket*>(entry & ~kGuards) : nullptr;
  }
  static bool can_contain(int fd) noexcept { return engine::DescriptorSet::can_contain(fd); }
  /// Requires that the table can_contain() the number.
  static void set(int fd, Socket& socket) noexcept {
    used_.insert(fd);
    entries_[fd].store(reinterpret_cast<uintptr_t>(&socket), std::memory_order_release);
  }
  /// Lets guards hold the socket by this number from now on. The caller holds a reference to it.
  static void admit_guards(int fd, Socket& socket) noexcept {
    auto entry = reinterpret_cast<uintptr_t>(&socket);
    if (load(fd) != entry) return;  // guards may be admitted already
    socket.expect_guards();
    entries_[fd].compare_exchange_strong(entry, entry | kGuards, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }
  static Socket* take(int fd) noexcept {
    if (!can_contain(fd)) return nullptr;
    return reinterpret_cast<Socket*>(entries_[fd].exchange(0, std::memory_order_acq_rel) &
                                     ~kGuards);
  }
  /// Returns the smallest number not below `fd` that may have an entry, or negative.
  static int next(int fd) noexcept { return used_.next(fd); }

 private:
  static constexpr uintptr_t kGuards = 1;

  static uintptr_t load(int fd) noexcept {
    if (static_cast<unsigned>(fd) >= kSize) [[unlikely]]
      return 0;
    // acquire pairs with the release in set(): the socket is complete.
    return entries_[fd].load(std::memory_order_acquire);
  }

  static std::atomic<uintptr_t> entries_[kSize];  // 8 MiB of zero pages, touched as far as used
  // The numbers that have ever had an entry: a fork finds every entry there is, whatever other
  // threads are doing.
  static engine::DescriptorSet used_;
};

/// A reference to a tracked socket for the length of one call; empty for a foreign descriptor.
class SocketRef {
 public:
  explicit SocketRef(int fd) noexcept : first_(FdTable::peek(fd) != nullptr) {
    if (Socket* socket = FdTable::peek(fd)) take(fd, socket);
  }
  /// A reference to a socket that may have ended; empty then. The object may be in use for another
  /// socket by now.
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
    if (engine::is_copy()) [[unlikely]] {
      settle_copy();
      socket = FdTable::peek(fd);
    }
    // By the time this thread has its reference, the socket may be closed, and even be in use for
    // another connection.
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
  // Makes handlers wait: one that leaves by longjmp() would leave the reference behind.
  const engine::HandlersWait first_;
  Socket* socket_ = nullptr;
};

}  // namespace sidestep::preload

#include "preload/tracking.hpp"

#include <netinet/in.h>

#include <atomic>
#include <cerrno>

#include "engine/base/heap.hpp"
#include "engine/base/log.hpp"
#include "engine/node/node.hpp"
#include "preload/context.hpp"
#include "preload/fd_table.hpp"
#include "preload/socket_pool.hpp"
#include "preload/termination.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

void track(int fd, bool accepted, bool nonblocking, const sockaddr* remote) noexcept {
  if (engine::Node::is_barred()) return;
  const Context& settings = context();
  if (!settings.active || !FdTable::can_contain(fd)) return;
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof own;
  socklen_t peer_length = sizeof peer;
  const auto as_sockaddr = [](sockaddr_storage& storage) {
    return reinterpret_cast<sockaddr*>(&storage);
  };
  if (sys::getsockname(fd, &own, &own_length) < 0) return;
  if (remote == nullptr) {
    if (sys::getpeername(fd, &peer, &peer_length) < 0) return;
    remote = as_sockaddr(peer);
  }
  const auto local_end = engine::to_address(as_sockaddr(own));
  const auto remote_end = engine::to_address(remote);
  if (!local_end || !remote_end || remote_end->port == 0) return;
  if (!settings.rules.allows(program_invocation_short_name, settings.program_path,
                             *as_sockaddr(own), *remote))
    return;
  engine::Node* node = engine::Node::start(settings.config);
  if (node == nullptr) return;
  if (engine::heap_is_short()) {
    // The memory that is left is for the streams that exist already.
    static std::atomic<bool> said{false};
    if (!said.exchange(true, std::memory_order_relaxed))
      engine::log(engine::LogLevel::warn,
                  "memory has run out; new streams stay on the kernel from now on");
    return;
  }
  write_stats_on_sigterm();
  Socket* socket = SocketPool::take();
  if (socket == nullptr) return;
  engine::Stream* stream = node->open_stream({*local_end, *remote_end}, fd, accepted, false);
  if (stream == nullptr) {
    SocketPool::give_back(*socket);
    return;
  }
  socket->open(*stream, nonblocking);
  FdTable::set(fd, *socket);
  // Starts the query only now, so that its answer finds the socket complete.
  node->streams().ask_for_owner(*stream);
}

void lose_number(int fd) noexcept {
  if (FdTable::peek(fd) == nullptr) return;
  const engine::HandlersWait first;
  if (Socket* const socket = FdTable::take(fd)) socket->lose_fd(fd);
}

}  // namespace sidestep::preload

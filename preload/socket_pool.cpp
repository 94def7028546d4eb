#include "preload/socket_pool.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "engine/base/lock.hpp"

namespace sidestep::preload {

namespace {
engine::Mutex g_pool_lock;
Socket* g_pool = nullptr;
}  // namespace

std::atomic<Socket*> SocketPool::all_{nullptr};

Socket* SocketPool::take() noexcept {
  {
    const std::lock_guard guard(g_pool_lock);
    if (g_pool != nullptr) return std::exchange(g_pool, g_pool->next_free_);
  }
  Socket* const socket = new (std::nothrow) Socket;
  if (socket == nullptr) return nullptr;
  socket->next_made_ = all_.load(std::memory_order_relaxed);
  // release pairs with the acquire in for_all().
  while (!all_.compare_exchange_weak(socket->next_made_, socket, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
  return socket;
}

void SocketPool::give_back(Socket& socket) noexcept {
  // Resets everything but the reference count, which late guards still look at.
  socket.stream_ = nullptr;
  socket.expects_guards_ = false;
  socket.nonblocking_ = false;
  socket.tells_unread_ = -1;
  socket.read_shut_ = false;
  socket.write_shut_ = false;
  socket.receive_timeout_ = Socket::kUnknown;
  socket.send_timeout_ = Socket::kUnknown;
  socket.descriptors_ = 0;
  socket.private_anchor_ = -1;
  socket.residue_ = nullptr;
  socket.awaited_ = 0;
  socket.in_use_.store(false, std::memory_order_release);
  const std::lock_guard guard(g_pool_lock);
  socket.next_free_ = g_pool;
  g_pool = &socket;
}

void SocketPool::forget_after_fork() noexcept {
  g_pool_lock.reset_after_fork();
  g_pool = nullptr;
  all_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace sidestep::preload

#include "preload/socket_lifecycle.hpp"

#include <fcntl.h>

#include <new>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/node/node.hpp"
#include "preload/fd_table.hpp"
#include "preload/hazard_guard.hpp"
#include "preload/residue.hpp"
#include "preload/socket_pool.hpp"

namespace sidestep::preload {

using engine::Phase;
namespace sys = engine::sys;

// ---- exit

std::atomic<bool> AllSockets::finishing_{false};

void AllSockets::finish_all() noexcept {
  engine::Node* node = engine::Node::running();
  if (node == nullptr) return;
  // release: ordered before any end mark, see transmit().
  finishing_.store(true, std::memory_order_release);
  bool ended = false;
  const auto end = [&](Socket& socket) {
    engine::Stream& stream = *socket.stream_;
    // Nobody waits any longer for what would move the stream.
    if (stream.phase() == Phase::undecided) node->streams().keep_on_kernel(stream);
    const bool stuck = socket.end_stream().stuck;  // called even if others were stuck
    ended = ended && !stuck && stream.phase() != Phase::undecided;
  };
  const uint64_t limit = engine::now_ns() + 500'000'000;
  // Another thread that is just ending a socket has to get its end mark out as well.
  for (;;) {
    ended = true;
    const bool settled = SocketPool::for_all(end);
    ended = ended && settled;
    if (settled || engine::now_ns() >= limit) break;
    sys::sched_yield();
  }
  node->finish(ended);
  finishing_.store(false, std::memory_order_release);
}

// ---- fork

void AllSockets::bring_all_down(engine::Reason reason) noexcept {
  engine::Node* node = engine::Node::running();
  if (node == nullptr) return;
  bool any = false;
  // Includes streams that settle on the kernel meanwhile: the peer may hold its direction.
  const auto concerns = [](const Socket& socket) {
    return !socket.is_plain() || socket.stream_->receiver().wants_hold();
  };
  SocketPool::for_all([&](Socket& socket) {
    if (!concerns(socket)) return;
    // Includes streams that are down: they might come up again.
    socket.stream_->ask_peer_down(reason, true);
    any = any || socket.stream_->connection() != nullptr;
  });
  if (!any) return;
  node->progress().drain();  // both ends of a stream may be here
  SocketPool::for_all([&](Socket& socket) {
    if (concerns(socket)) socket.stream_->go_down();
  });
  using Awaits = engine::Patience::Awaits;
  const auto wait_until = [&](engine::Patience& patience, Awaits what, auto&& holds) {
    do {
      node->progress().poll();
      bool waiting = false;
      SocketPool::for_all([&](Socket& socket) {
        waiting = waiting ||
                  (concerns(socket) && !holds(socket) && !socket.waits_in_vain(patience, what));
      });
      if (!waiting) return;
    } while (patience.pause());
  };
  // `patience` is the deadline for the last wait, and begins now. It is long, because what a child
  // sends must not overtake what this process still has to send for its peer. The first wait is
  // shorter: whatever has not come by then is lost to the child.
  engine::Patience patience(10'000'000'000);
  engine::Patience first(3'000'000'000);
  wait_until(first, Awaits::engine, [](Socket& socket) { return socket.has_left(); });
  SocketPool::for_all([&](Socket& socket) {
    if (concerns(socket)) socket.move_unread_away();
  });
  engine::Patience second(1'000'000'000);
  wait_until(second, Awaits::program, [](Socket& socket) { return socket.has_come_back(); });
  wait_until(patience, Awaits::program, [](Socket& socket) {
    return !socket.stream_->sender().has_replay() || socket.stream_->is_aborted();
  });
  for (int i = 0; i < 10; ++i) node->progress().poll();  // lets the streams settle on the kernel
}

bool AllSockets::can_be_inherited() noexcept {
  bool can = true;
  for (int fd = FdTable::next(0); fd >= 0; fd = FdTable::next(fd + 1)) {
    const SocketRef socket(fd);
    if (!socket || (sys::fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) != 0) continue;
    const size_t unread = socket->unread_residue();
    const bool torn = socket->is_torn();
    if (unread == 0 && !torn) continue;
    const bool standard = fd <= STDERR_FILENO;
    engine::log(standard ? engine::LogLevel::error : engine::LogLevel::warn,
                "descriptor %d: %zu bytes%s cannot be handed to another program%s", fd, unread,
                torn ? ", and what the peer has not handed over in time," : "",
                standard ? "; exec failed" : "");
    can = can && !standard;
  }
  return can;
}

void AllSockets::stop_tracking() noexcept {
  for (int fd = FdTable::next(0); fd >= 0; fd = FdTable::next(fd + 1)) {
    const SocketRef socket(fd);
    // The descriptor's reference is kept forever: the engine that would have to be told of the
    // stream's end no longer exists.
    if (!socket || !socket->is_plain()) continue;
    FdTable::take(fd);
    // relaxed: the signal orders it.
    socket->was_given_up_.store(true, std::memory_order_relaxed);
    socket->stream_->signal(engine::kReadable | engine::kWritable);
  }
}

bool AllSockets::after_fork_in_child(bool closes_descriptors) noexcept {
  if (!engine::Node::has_begun()) return false;
  SocketPool::forget_after_fork();
  HazardGuard::forget_after_fork();
  bool any_torn = false;
  for (int fd = FdTable::next(0); fd >= 0; fd = FdTable::next(fd + 1)) {
    // The parent's streams are plain kernel sockets here, except for what nobody has read yet. The
    // objects of the parent's engine are left alone: threads that no longer exist may hold their
    // locks.
    Socket* const socket = FdTable::take(fd);
    if (socket == nullptr) continue;
    const bool torn = socket->is_torn();
    any_torn = any_torn || torn;
    if (!torn && (socket->residue_ == nullptr || socket->residue_->left() == 0)) continue;
    auto* fresh = new (std::nothrow) Socket;
    auto* stream = engine::Stream::make_detached(socket->stream_->tuple(), fd, torn);
    if (fresh == nullptr || stream == nullptr) continue;
    fresh->open(*stream, socket->nonblocking());
    fresh->residue_ = socket->residue_;
    FdTable::set(fd, *fresh);
  }
  engine::Node::forget_after_fork(closes_descriptors);
  return any_torn;
}

}  // namespace sidestep::preload

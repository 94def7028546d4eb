// Sockets as a whole: which ones are tracked, and what happens to them at fork and at exit.
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>

#include "engine/base/clock.hpp"
#include "engine/base/heap.hpp"
#include "engine/base/log.hpp"
#include "engine/base/tcp_counts.hpp"
#include "engine/node/node.hpp"
#include "preload/context.hpp"
#include "preload/fd_table.hpp"
#include "preload/residue.hpp"
#include "preload/socket_pool.hpp"
#include "preload/termination.hpp"
#include "preload/visit.hpp"

namespace sidestep::preload {

using engine::Phase;
using engine::RxHead;
namespace sys = engine::sys;

// ---- the pool

namespace {
engine::Mutex g_pool_lock;
Socket* g_pool = nullptr;
}  // namespace

std::atomic<Socket*> SocketPool::all_{nullptr};

Socket* SocketPool::take() noexcept {
  g_pool_lock.lock();
  Socket* socket = g_pool;
  if (socket != nullptr) g_pool = socket->next_free_;
  g_pool_lock.unlock();
  if (socket != nullptr) return socket;
  socket = new (std::nothrow) Socket;
  if (socket == nullptr) return nullptr;
  socket->next_made_ = all_.load(std::memory_order_relaxed);
  // release pairs with the acquire in for_all().
  while (!all_.compare_exchange_weak(socket->next_made_, socket, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
  return socket;
}

void SocketPool::give_back(Socket& socket) noexcept {
  // Resets everything but the reference count, which late visitors still look at.
  socket.stream_ = nullptr;
  socket.expects_visitors_ = false;
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
  g_pool_lock.lock();
  socket.next_free_ = g_pool;
  g_pool = &socket;
  g_pool_lock.unlock();
}

void SocketPool::forget_after_fork() noexcept {
  g_pool_lock.reset_after_fork();
  g_pool = nullptr;
  all_.store(nullptr, std::memory_order_relaxed);
}

// ---- tracking

void Socket::track(int fd, bool accepted, bool nonblocking, const sockaddr* remote) noexcept {
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

// ---- exit

Socket::End Socket::end_stream() noexcept {
  if (stream_->connection() == nullptr || stream_->is_dead()) return {.marked = true};
  // If the stream is on the kernel for good, the peer looks at nothing but the anchor's end, and
  // another process may go on with the anchor.
  if (stream_->phase() == Phase::kernel) return {.marked = !stream_->has_replay()};
  // As in the kernel, closing without having read everything tells the peer that it is lost.
  bool unread = false;
  if (stream_->recv_lock().lock_unless_stuck()) {
    // Done before the look at what comes next, which may open the door.
    stream_->stop_inviting_locked();
    const RxHead head = stream_->rx_head_locked();
    int in_kernel = 0;
    if (head.kind == RxHead::Kind::kernel) sys::ioctl(anchor(), SIOCINQ, &in_kernel);
    stream_->unlock_recv();
    unread = head.kind == RxHead::Kind::data || head.switch_pending || in_kernel != 0;
  }
  if (stream_->is_bound() && (unread || resets_at_close())) {
    stream_->reset();
    return {true, true};
  }
  if (!stream_->send_lock().lock_unless_stuck()) return {.stuck = true};
  const bool sent = stream_->finish_locked();
  if (sent) stream_->closes_anchor_locked();
  stream_->unlock_send();
  return {.marked = sent};
}

std::atomic<bool> Socket::finishing_{false};

void Socket::finish_all() noexcept {
  engine::Node* node = engine::Node::running();
  if (node == nullptr) return;
  // release: ordered before any end mark, see transmit().
  finishing_.store(true, std::memory_order_release);
  bool ended = false;
  const auto end = [&](Socket& socket) {
    engine::Stream& stream = *socket.stream_;
    // Nobody waits for whatever would still move the stream.
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

void Socket::move_unread_away() noexcept {
  if (!stream_->recv_lock().lock_unless_stuck()) return;
  if (stream_->connection() == nullptr || residue_ != nullptr) {
    stream_->end_hold_locked();
    stream_->unlock_recv();
    return;
  }
  const size_t unread = stream_->rx_queued();
  const std::optional<uint64_t> mark = stream_->held_at_locked();
  const uint64_t held_at = mark.value_or(0);
  const bool is_held = mark.has_value() && held_at >= stream_->rx_kernel();  // less is nonsense
  // Bytes that the kernel has behind unread bytes of the engine have to come along.
  const auto in_kernel = [&] {
    return is_held ? held_at - std::min(held_at, stream_->rx_kernel()) : 0;
  };
  Residue* residue = nullptr;
  bool whole = true;
  // The kernel bytes that are asked for have been sent already: they are here, or on their way on
  // this host.
  const auto take_from_kernel = [&](uint64_t bytes) {
    while (bytes != 0 && whole) {
      std::byte buffer[4096];
      const long n = sys::recvfrom(anchor(), buffer, std::min<uint64_t>(sizeof buffer, bytes),
                                   MSG_DONTWAIT, nullptr, nullptr);
      if (n == -EAGAIN) {
        pollfd fd{anchor(), POLLIN, 0};
        const timespec limit{0, 100'000'000};
        whole = sys::ppoll(&fd, 1, &limit, nullptr) == 1;
        continue;
      }
      whole = n > 0 && residue->append(buffer, static_cast<size_t>(n));  // sized for all of them
      if (!whole) break;
      stream_->count_kernel_received(static_cast<uint64_t>(n));
      bytes -= static_cast<uint64_t>(n);
    }
  };
  while (whole) {
    const RxHead head = stream_->rx_head_locked();
    const bool kernel_part = head.kind == RxHead::Kind::kernel && head.switch_pending;
    if (head.kind != RxHead::Kind::data && !kernel_part) break;
    if (residue == nullptr)
      residue = Residue::create(
          unread + std::min<uint64_t>(  // avoids overflow: the peer says how many
                       std::max(kernel_part ? head.limit : 0, in_kernel()), Residue::kMost));
    if (residue == nullptr) break;
    if (kernel_part) {
      take_from_kernel(head.limit);
      continue;
    }
    // A peer that did not come down in time may have sent more since. That stays queued, and is
    // read after the residue.
    if (!residue->append(head.data, head.limit)) break;
    stream_->consume_locked(head.limit);
  }
  if (residue != nullptr && is_held && whole) {
    take_from_kernel(in_kernel());
    const auto before = engine::tcp_counts(anchor());
    const size_t size = residue->all().size();
    if (whole && stream_->hand_back_locked(residue->all())) {
      Residue::release(residue);
      residue = nullptr;
      // Waits for no more than any receive buffer takes at once.
      if (before) awaited_ = before->received + std::min<size_t>(size, 32 * 1024);
    }
  }
  residue_ = residue;
  stream_->end_hold_locked();
  stream_->unlock_recv();
}

bool Socket::has_come_back() noexcept {
  if (stream_->is_dead()) return true;
  if (awaited_ != 0) {
    const auto counts = engine::tcp_counts(anchor());
    if (counts && counts->received < awaited_) return false;
    awaited_ = 0;
  }
  return !stream_->has_replay();
}

void Socket::bring_all_down(engine::Reason reason) noexcept {
  engine::Node* node = engine::Node::running();
  if (node == nullptr) return;
  bool any = false;
  // Includes streams that settle on the kernel meanwhile: the peer may hold its direction.
  const auto concerns = [](const Socket& socket) {
    return !socket.is_plain() || socket.stream_->wants_hold();
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
    return !socket.stream_->has_replay() || socket.stream_->is_dead();
  });
  for (int i = 0; i < 10; ++i) node->progress().poll();  // lets the streams settle on the kernel
}

bool Socket::is_torn() noexcept {
  if (stream_->is_detached()) return stream_->is_dead();
  return stream_->connection() != nullptr && !stream_->is_dead() &&
         (!has_left() || stream_->rx_queued() != 0 || stream_->has_replay());
}

bool Socket::can_be_inherited() noexcept {
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

void Socket::stop_tracking() noexcept {
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

bool Socket::after_fork_in_child(bool closes_descriptors) noexcept {
  if (!engine::Node::has_begun()) return false;
  SocketPool::forget_after_fork();
  Visit::forget_after_fork();
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

// Calls that make, configure and end connections.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

#include "engine/base/held_locks.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "engine/stream/kernel_options.hpp"
#include "preload/context.hpp"
#include "preload/event_set_table.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/kernel_socket.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"
#include "preload/tracking.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

/// Stops tracking `fd`, which is about to be connected anew.
void untrack(int fd) noexcept {
  if (const SocketRef socket(fd); socket) socket->leave_sets();
  if (Socket* socket = FdTable::take(fd)) socket->remove_fd(fd);
}

/// True if the number belongs to another socket by now: a socket that was ever connected can't be
/// connected anew, so it was closed past the library.
bool is_stale(int fd) noexcept {
  const SocketRef socket(fd);
  if (!socket) return false;
  const engine::Stream& stream = socket->stream();
  return stream.is_bound() || stream.sender().kernel_bytes() + stream.receiver().kernel_bytes() +
                                      stream.receiver().engine_bytes() !=
                                  0;
}

/// True if `fd` is connected as its stream is, and not anew.
bool is_connection_of(int fd, const sockaddr* remote) noexcept {
  const SocketRef socket(fd);
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  if (!socket || sys::getsockname(fd, &own, &length) < 0) return false;
  const engine::Tuple& tuple = socket->stream().tuple();
  return engine::to_address(reinterpret_cast<const sockaddr*>(&own)) == tuple.local &&
         engine::to_address(remote) == tuple.remote;
}

/// connect() to AF_UNSPEC: ends the connection at once, with a reset for the peer. The descriptor
/// may be connected anew.
[[gnu::noinline]] int disconnect(int fd, const sockaddr* address, socklen_t length) noexcept {
  linger lingering{};
  {
    const SocketRef socket(fd);
    const int result = sys::connect(fd, address, length);
    if (result < 0) errno = -result;
    if (!socket || result < 0) return result < 0 ? -1 : 0;
  }
  socklen_t size = sizeof lingering;
  sys::getsockopt(fd, SOL_SOCKET, SO_LINGER, &lingering, &size);
  const linger now{1, 0};
  sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  untrack(fd);
  sys::setsockopt(fd, SOL_SOCKET, SO_LINGER, &lingering, sizeof lingering);
  return 0;
}

/// Called before connect(). Returns false if the stream could not leave the kernel anyway.
[[gnu::noinline]] bool announce(int fd, const sockaddr* address, socklen_t length) noexcept {
  const bool inet = length >= sizeof(sockaddr_in) && engine::is_readable(address, length) &&
                    (address->sa_family == AF_INET || address->sa_family == AF_INET6);
  // The configuration is not read in a sandbox that forbids it.
  if (!inet || engine::Node::is_barred() || !context().active || !is_tcp(fd)) return false;
  if (engine::is_copy()) settle_copy();
  // The node and its name exist before the peer can see the connection. The peer's question may
  // come before the call has returned; then the peer is told to ask again
  // (NodeStreams::connecting).
  engine::Node* node = engine::Node::start(context().config);
  if (node != nullptr) count_in(node->streams().connecting);
  return node != nullptr;
}

/// Called after connect(), if that was announced; errno is the kernel's. Returns the result of the
/// call.
[[gnu::noinline]] int connected(int fd, const sockaddr* address, int result) noexcept {
  const int saved = errno;
  const engine::HandlersWait first;
  const int error = result == 0 ? 0 : saved;
  const bool begun = error == 0 || error == EINPROGRESS || error == EINTR;
  // A second connect() asks how the first one went, or starts over.
  const bool known = FdTable::peek(fd) != nullptr;
  const bool goes_on =
      known && (error == EISCONN || error == EALREADY || (begun && is_connection_of(fd, address)));
  if (!goes_on) {
    if (known && is_stale(fd)) lose_number(fd);  // its memberships went with it
    untrack(fd);
  }
  if (begun && !goes_on) {
    const int flags = sys::fcntl(fd, F_GETFL, 0);
    track(fd, false, flags >= 0 && (flags & O_NONBLOCK) != 0, address);
    const SocketRef socket(fd);
    if (socket) EventSetTable::adopt(fd, *socket);
    if (socket && flags >= 0 && (flags & O_ASYNC) != 0) socket->leave_engine(engine::Reason::sigio);
  }
  count_out();
  errno = saved;
  return result;
}

socklen_t room_of(const sockaddr* address, const socklen_t* length) noexcept {
  return address != nullptr && engine::is_readable(length, sizeof *length) ? *length : 0;
}

/// Called after accept(). `address` and `room` are the program's: where the kernel has put the
/// peer's address.
[[gnu::noinline]] int accepted(int fd, int flags, const sockaddr* address,
                               socklen_t room) noexcept {
  if (fd >= 0) lose_number(fd);  // whatever had this number was closed
  // Among the sockets that accept() returns, only streams have this protocol.
  if (fd >= 0 && !engine::Node::is_barred() && context().active &&
      socket_option(fd, SO_PROTOCOL) == IPPROTO_TCP) {
    const engine::HandlersWait first;
    const int saved = errno;
    if (engine::is_copy()) settle_copy();
    const bool is_whole = room >= sizeof(sockaddr_in6) ||
                          (room >= sizeof(sockaddr_in) && address->sa_family == AF_INET);
    track(fd, true, (flags & SOCK_NONBLOCK) != 0, is_whole ? address : nullptr);
    errno = saved;
  }
  return fd;
}

bool sets_buffer(int name) noexcept {
  constexpr int kLock = 72;  // SO_BUF_LOCK
  return name == SO_SNDBUF || name == SO_RCVBUF || name == SO_SNDBUFFORCE ||
         name == SO_RCVBUFFORCE || name == kLock;
}

}  // namespace

// Calls that sleep in the kernel may be canceled there: see shim_receive.cpp.

SIDESTEP_EXPORT int connect(int fd, const sockaddr* address, socklen_t length) {
  resolve_real();
  if (length >= sizeof(sa_family_t) && engine::is_readable(address, sizeof(sa_family_t)) &&
      address->sa_family == AF_UNSPEC)
    return disconnect(fd, address, length);
  if (!announce(fd, address, length)) return real::connect(fd, address, length);
  return connected(fd, address, real::connect(fd, address, length));
}

SIDESTEP_EXPORT int accept(int fd, sockaddr* address, socklen_t* length) {
  resolve_real();
  const socklen_t room = room_of(address, length);
  return accepted(real::accept(fd, address, length), 0, address, room);
}

SIDESTEP_EXPORT int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  resolve_real();
  const socklen_t room = room_of(address, length);
  return accepted(real::accept4(fd, address, length, flags), flags, address, room);
}

SIDESTEP_EXPORT int shutdown(int fd, int how) {
  SocketRef socket(fd);
  if (!socket) {
    resolve_real();
    return real::shutdown(fd, how);
  }
  return socket->shutdown(how);
}

SIDESTEP_EXPORT int getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  resolve_real();
  if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE) {
    // This option takes bytes out of the stream, but only those that the kernel has.
    if (SocketRef socket(fd); socket) socket->leave_engine(engine::Reason::kernel_option);
  }
  const int result = real::getsockopt(fd, level, name, value, length);
  if (result == 0 && level == SOL_SOCKET && name == SO_ERROR && *length == sizeof(int)) {
    const SocketRef socket(fd);
    if (!socket) return result;
    engine::Stream& stream = socket->stream();
    int error = *static_cast<int*>(value);  // the anchor's
    if (stream.errors().was_told()) {
      error = 0;
    } else if (error == 0) {
      error = stream.errors().take();
    }
    if (error != 0 && stream.is_bound()) stream.errors().note_told();
    std::memcpy(value, &error, sizeof error);
  }
  if (result == 0 && engine::AnchorKeepAlive::concerns(level, name) && *length == sizeof(int)) {
    const SocketRef socket(fd);
    if (!socket) return result;
    if (const auto own = socket->stream().keep_alive().hidden(level, name))
      std::memcpy(value, &*own, sizeof *own);
  }
  if (result == 0 && level == SOL_SOCKET && name == SO_RCVLOWAT && *length == sizeof(int)) {
    const SocketRef socket(fd);
    const int mark = socket && socket->stream().is_bound() ? socket->receiver().low_water() : 1;
    if (mark != 1) std::memcpy(value, &mark, sizeof mark);
  }
  return result;
}

SIDESTEP_EXPORT int setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  resolve_real();
  SocketRef socket(fd);
  if (socket && level == IPPROTO_TCP && name == TCP_ULP)
    // Before the call: after it, the kernel's bytes are no longer those of the program (kTLS).
    socket->leave_engine(engine::Reason::kernel_option);
  if (socket && engine::AnchorKeepAlive::concerns(level, name)) {
    engine::Stream& stream = socket->stream();
    const engine::SideGuard guard(stream.receiver());
    stream.keep_alive().end_locked();
    return real::setsockopt(fd, level, name, value, length);
  }
  const int result = real::setsockopt(fd, level, name, value, length);
  if (result != 0 || !socket) return result;
  int number = 1;  // for options that are not numbers
  if (length >= sizeof number) std::memcpy(&number, value, sizeof number);
  if (level == SOL_SOCKET && name == SO_RCVLOWAT)
    socket->receiver().note_low_water(engine::low_water_of(fd));  // the kernel has limits for it
  if (engine::needs_kernel(level, name, number))
    socket->leave_engine(engine::Reason::kernel_option);
  if (level == IPPROTO_TCP && name == TCP_CORK) socket->sender().note_cork();
  if (level == IPPROTO_TCP && name == TCP_NODELAY && number != 0) socket->sender().push();
  if (level == IPPROTO_TCP && name == TCP_INQ) socket->set_tells_unread(number != 0);
  if (level != SOL_SOCKET) return result;
  if (sets_buffer(name)) socket->receiver().note_buffers();
  if ((name == SO_RCVTIMEO || name == SO_SNDTIMEO) && length >= sizeof(timeval)) {
    timeval time;
    std::memcpy(&time, value, sizeof time);
    socket->set_timeout(name, time);
  }
  return result;
}

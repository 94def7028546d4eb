// Anchors that carry nothing are kept alive.
//
// While the engine carries a stream, its anchor idles, and a firewall or a connection tracker
// forgets an idle TCP connection. It then ends a busy stream, or leaves it no way down. So an
// anchor whose stream has been on the engine for some seconds gets the kernel's keepalive, unless
// the program has set its own, or has set TCP_USER_TIMEOUT, with which an unanswered probe would
// end the connection. For the same reason the kernel is told to tolerate as many unanswered probes
// as it can: over the kernel, an idle connection outlives a path that is down for a while.
//
// The program does not see the keepalive: getsockopt() shows what the program has set, and those
// values come back when it sets any of these options, or when the stream leaves the engine. All of
// this happens under the stream's receiving lock, which also keeps the anchor's number.
#include "engine/stream/anchor_keep_alive.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "engine/base/sys.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {
namespace {

constexpr int kMostProbes = 127;

int get(int fd, int level, int name) noexcept {
  int value = 0;
  socklen_t length = sizeof value;
  return sys::getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

void set(int fd, int level, int name, int value) noexcept {
  sys::setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

void AnchorKeepAlive::begin_locked(int seconds) noexcept {
  const bool on_engine = stream_.sender().carrier() == Carrier::engine ||
                         stream_.receiver().carrier() == Carrier::engine;
  if (kept_.on || !stream_.is_bound() || stream_.is_aborted() || stream_.is_closed() || !on_engine)
    return;
  const int fd = stream_.anchor();
  if (get(fd, SOL_SOCKET, SO_KEEPALIVE) != 0 || get(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) != 0) return;
  kept_ = {true, get(fd, IPPROTO_TCP, TCP_KEEPIDLE), get(fd, IPPROTO_TCP, TCP_KEEPINTVL),
           get(fd, IPPROTO_TCP, TCP_KEEPCNT)};
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kMostProbes);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void AnchorKeepAlive::end_locked() noexcept {
  if (!kept_.on) return;
  kept_.on = false;
  const int fd = stream_.anchor();
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kept_.idle);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kept_.interval);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kept_.count);
}

bool AnchorKeepAlive::concerns(int level, int name) noexcept {
  return (level == SOL_SOCKET && name == SO_KEEPALIVE) ||
         (level == IPPROTO_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL ||
                                   name == TCP_KEEPCNT || name == TCP_USER_TIMEOUT));
}

std::optional<int> AnchorKeepAlive::hidden(int level, int name) noexcept {
  if (!concerns(level, name)) return std::nullopt;
  Kept kept;
  {
    const SideGuard guard(stream_.receiver());
    kept = kept_;
  }
  if (!kept.on || (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT)) return std::nullopt;
  if (level == SOL_SOCKET) return 0;
  return name == TCP_KEEPIDLE ? kept.idle : name == TCP_KEEPINTVL ? kept.interval : kept.count;
}

}  // namespace sidestep::engine

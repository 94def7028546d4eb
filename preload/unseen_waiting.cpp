#include "preload/unseen_waiting.hpp"

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"
#include "engine/node/node.hpp"
#include "engine/stream/stream.hpp"
#include "preload/descriptor.hpp"
#include "preload/open_descriptors.hpp"
#include "preload/socket_pool.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

/// True for a ring or an epoll set. The caller has left out the library's own descriptors and the
/// sets that it knows.
bool is_means_to_wait(int fd) noexcept {
  char path[40];
  char target[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const long length = sys::call(SYS_readlinkat, AT_FDCWD, path, target, sizeof target);
  const std::string_view text(target, length > 0 ? static_cast<size_t>(length) : 0);
  return text == "anon_inode:[io_uring]" || text == "anon_inode:[eventpoll]";
}

}  // namespace

void note_ring() noexcept {
  if (engine::Clearance::waits_unseen.exchange(true, std::memory_order_seq_cst) ||
      engine::Node::running() == nullptr)
    return;
  // Brings down the streams that have moved because there was no ring.
  const engine::HandlersWait first;
  SocketPool::for_all([](Socket& socket) {
    if (socket.stream().clearance().is_presumed())
      socket.stream().request_down(engine::Reason::unseen_waiting, true);
  });
  const uint64_t limit = engine::now_ns() + 3'000'000'000;
  SocketPool::for_all([&](Socket& socket) {
    if (socket.stream().clearance().is_presumed() && engine::now_ns() < limit)
      socket.leave_engine(engine::Reason::unseen_waiting);
  });
}

std::optional<bool> may_wait_unseen() noexcept {
  if (engine::Clearance::waits_unseen.load(std::memory_order_relaxed)) return true;
  return any_open_descriptor(
      [](int fd) { return kind_of(fd) == DescriptorKind::foreign && is_means_to_wait(fd); });
}

void watch_for_unseen_waiting() noexcept {
  engine::Clearance::may_wait_unseen.store(may_wait_unseen, std::memory_order_release);
}

}  // namespace sidestep::preload

#include "preload/selector.hpp"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <new>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/descriptor.hpp"
#include "preload/open_descriptors.hpp"
#include "preload/poller.hpp"

namespace sidestep::preload {
namespace {

void put(int fd, fd_set* set) noexcept {
  reinterpret_cast<unsigned long*>(set)[fd / 64] |= 1UL << (fd % 64);
}
void clear(int count, fd_set* set) noexcept {
  if (set != nullptr) std::fill_n(reinterpret_cast<unsigned long*>(set), (count + 63) / 64, 0UL);
}

/// Returns how many of `count` descriptors to look at. The kernel looks at no more than the
/// process's descriptor table has room for, and programs pass it the largest possible count with
/// sets that are shorter. The library's own descriptors have made that table longer.
int within_table(int count) noexcept {
  if (count <= FD_SETSIZE) return count;
  int highest = 0;
  const auto all = any_open_descriptor([&](int fd) {
    if (!is_ours(fd)) highest = std::max(highest, fd);
    return false;
  });
  if (!all) return count;
  constexpr unsigned kStep = 128;  // as the kernel lets it grow
  return std::min(
      count, static_cast<int>(kStep * std::bit_ceil(static_cast<unsigned>(highest) / kStep + 1)));
}

}  // namespace

int select_mixed(int count, fd_set* reads, fd_set* writes, fd_set* excepts, int64_t timeout,
                 const sigset_t* mask) noexcept try {
  const engine::HandlersWait first;
  count = within_table(count);
  const size_t size = (static_cast<size_t>(count) + 63) / 64 * sizeof(unsigned long);
  for (fd_set* const set : {reads, writes, excepts}) {
    if (set == nullptr || engine::touch_to_write(set, size) == size) continue;
    errno = EFAULT;
    return -1;
  }
  std::vector<pollfd> fds;
  for (int fd = 0; fd < count; ++fd) {
    short events = 0;
    if (is_set(fd, reads)) events = static_cast<short>(events | POLLIN | POLLRDNORM | POLLRDBAND);
    if (is_set(fd, writes)) events = static_cast<short>(events | POLLOUT | POLLWRNORM | POLLWRBAND);
    if (is_set(fd, excepts)) events = static_cast<short>(events | POLLPRI);
    if (events != 0) fds.push_back({fd, events, 0});
  }
  constexpr int kReads = POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR;
  constexpr int kWrites = POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR;
  const uint64_t start = engine::now_ns();
  const auto is_ready = [](const pollfd& fd, short asked, int ready) {
    return (fd.events & asked) != 0 && (fd.revents & ready) != 0;
  };
  for (;;) {
    const int64_t left =
        timeout < 0
            ? timeout
            : std::max<int64_t>(timeout - static_cast<int64_t>(engine::now_ns() - start), 0);
    const int result = poll_mixed(fds.data(), fds.size(), left, mask);
    if (result < 0) return -1;
    if (result == 0) break;
    bool any = false;
    for (pollfd& fd : fds) {
      if ((fd.revents & POLLNVAL) != 0) {
        errno = EBADF;
        return -1;
      }
      const bool ready = is_ready(fd, POLLIN, kReads) || is_ready(fd, POLLOUT, kWrites) ||
                         is_ready(fd, POLLPRI, POLLPRI);
      any = any || ready;
      // poll() reports errors and hang-ups unasked. If none of its sets counts them, a descriptor
      // waits for something that can't come any more.
      if (fd.revents != 0 && !ready) fd.fd = -1;
    }
    if (any) break;
  }
  int bits = 0;
  const auto report = [&](const pollfd& fd, short asked, int ready, fd_set* set) {
    if (fd.fd < 0 || !is_ready(fd, asked, ready)) return;
    put(fd.fd, set);
    ++bits;
  };
  clear(count, reads);
  clear(count, writes);
  clear(count, excepts);
  for (const pollfd& fd : fds) {
    report(fd, POLLIN, kReads, reads);
    report(fd, POLLOUT, kWrites, writes);
    report(fd, POLLPRI, POLLPRI, excepts);
  }
  return bits;
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return -1;
}

}  // namespace sidestep::preload

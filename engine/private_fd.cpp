#include "engine/private_fd.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/select.h>

#include <algorithm>
#include <atomic>

#include "engine/descriptor_set.hpp"
#include "engine/sys.hpp"

namespace sidestep::engine {
namespace {

constinit DescriptorSet g_private;  // used before constructors run
std::atomic<unsigned> g_epoch{1};

// Above what select() can tell, and below half of the soft limit: a program that raises its limit
// later keeps low numbers low. No higher than that: a process's table of descriptors reaches to its
// highest number, and every fork copies the whole of it.
int first_high_number() noexcept {
  constexpr rlim_t kHigh = 2 * FD_SETSIZE;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  return static_cast<int>(std::min(kHigh, limit.rlim_cur / 2));
}

}  // namespace

int private_fd_adopt(int fd) noexcept {
  if (fd < 0) return fd;
  int high = sys::fcntl(fd, F_DUPFD_CLOEXEC, first_high_number());
  if (high >= 0) {
    sys::close(fd);
  } else {
    high = fd;
    sys::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  g_private.insert(high);
  return high;
}

void private_fd_release(int fd) noexcept {
  g_private.erase(fd);
}

void private_fd_close(int fd) noexcept {
  if (fd < 0) return;
  private_fd_release(fd);
  sys::close(fd);
}

bool is_private_fd(int fd) noexcept {
  return g_private.contains(fd);
}

int next_private_fd(int fd) noexcept {
  return g_private.next(fd);
}

unsigned private_fd_epoch() noexcept {
  return g_epoch.load(std::memory_order_relaxed);
}

void private_fd_close_all() noexcept {
  // relaxed: a child of fork has one thread.
  g_epoch.fetch_add(1, std::memory_order_relaxed);
  for (int fd = g_private.next(0); fd >= 0; fd = g_private.next(fd + 1)) private_fd_close(fd);
}

}  // namespace sidestep::engine

#include "engine/base/private_fd.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/select.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "engine/base/descriptor_set.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

constinit DescriptorSet g_private;  // used before constructors run
std::atomic<unsigned> g_epoch{1};

// The reserve: open descriptors that only hold their numbers until something else needs them.
// Whoever takes a number out of its place owns it; no other order matters.
constexpr int kNone = -1;    // the number is in use, and wanted back
constexpr int kUnused = -2;  // there is no reserve
std::atomic<int> g_reserve[kMostInReserve] = {kUnused, kUnused};
std::atomic<int> g_blank{-1};  // what a number in reserve refers to

// Above what select() can handle, but at most half of the soft limit: if a program raises its limit
// later, its low numbers stay low. No higher than that: a process's table of descriptors reaches to
// its highest number, and every fork copies the whole table.
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

int private_fd_duplicate(int fd) noexcept {
  int copy = sys::fcntl(fd, F_DUPFD_CLOEXEC, first_high_number());
  if (copy == -EMFILE) copy = sys::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy >= 0) {
    g_private.insert(copy);
    return copy;
  }
  if (copy != -EMFILE) return copy;
  for (auto& place : g_reserve) {
    int number = place.load(std::memory_order_relaxed);
    if (number < 0 || !place.compare_exchange_strong(number, kNone, std::memory_order_relaxed))
      continue;
    const auto result = static_cast<int>(sys::call(SYS_dup3, fd, number, O_CLOEXEC));
    if (result >= 0) return number;
    place.store(number, std::memory_order_relaxed);  // the program may have lowered its limit
    if (result == -EBADF && sys::fcntl(fd, F_GETFD, 0) < 0) return result;
  }
  return copy;
}

bool private_fd_make_reserve(int blank, size_t places) noexcept {
  g_blank.store(blank, std::memory_order_relaxed);
  for (size_t i = 0; i < places; ++i) {
    if (g_reserve[i].load(std::memory_order_relaxed) != kUnused) continue;
    // private_fd_duplicate() would take a number out of another place.
    int number = sys::fcntl(blank, F_DUPFD_CLOEXEC, first_high_number());
    if (number < 0) number = sys::fcntl(blank, F_DUPFD_CLOEXEC, 0);
    if (number < 0) return false;
    g_private.insert(number);
    g_reserve[i].store(number, std::memory_order_relaxed);
  }
  return true;
}

void private_fd_release(int fd) noexcept {
  g_private.erase(fd);
}

void private_fd_close(int fd) noexcept {
  if (fd < 0) return;
  for (auto& place : g_reserve) {
    if (place.load(std::memory_order_relaxed) != kNone) continue;
    // From here on nobody else uses it: it is private, and is in no place yet.
    if (sys::call(SYS_dup3, g_blank.load(std::memory_order_relaxed), fd, O_CLOEXEC) < 0) break;
    int none = kNone;
    if (place.compare_exchange_strong(none, fd, std::memory_order_relaxed)) return;
  }
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
  for (auto& place : g_reserve) place.store(kUnused, std::memory_order_relaxed);
  g_blank.store(-1, std::memory_order_relaxed);
  for (int fd = g_private.next(0); fd >= 0; fd = g_private.next(fd + 1)) private_fd_close(fd);
}

}  // namespace sidestep::engine

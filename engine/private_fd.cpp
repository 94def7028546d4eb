#include "engine/private_fd.hpp"

#include <fcntl.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdint>

#include "engine/sys.hpp"

namespace sidestep::engine {
namespace {

// One bit per descriptor number. Numbers above are not adopted high, they cannot be marked.
constexpr int kNumbers = 1 << 20;
std::atomic<uint64_t> g_bits[kNumbers / 64];
std::atomic<unsigned> g_epoch{1};

// Half of the soft limit, but not beyond: a program that raises its limit later keeps low numbers
// low.
int first_high_number() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 3;
  const auto soft = limit.rlim_cur < static_cast<rlim_t>(kNumbers) ? limit.rlim_cur : kNumbers;
  return static_cast<int>(soft / 2);
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
  // relaxed: a thread that has learned the number from us synchronised some other way.
  if (high < kNumbers) g_bits[high / 64].fetch_or(1ULL << (high % 64), std::memory_order_relaxed);
  return high;
}

void private_fd_release(int fd) noexcept {
  if (fd >= 0 && fd < kNumbers)
    g_bits[fd / 64].fetch_and(~(1ULL << (fd % 64)), std::memory_order_relaxed);
}

void private_fd_close(int fd) noexcept {
  if (fd < 0) return;
  private_fd_release(fd);
  sys::close(fd);
}

bool is_private_fd(int fd) noexcept {
  return fd >= 0 && fd < kNumbers &&
         (g_bits[fd / 64].load(std::memory_order_relaxed) >> (fd % 64) & 1U) != 0;
}

unsigned private_fd_epoch() noexcept {
  return g_epoch.load(std::memory_order_relaxed);
}

void private_fd_close_all() noexcept {
  // relaxed: a child of fork has one thread.
  g_epoch.fetch_add(1, std::memory_order_relaxed);
  for (int word = 0; word < kNumbers / 64; ++word) {
    uint64_t bits = g_bits[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1) sys::close(word * 64 + __builtin_ctzll(bits));
  }
}

}  // namespace sidestep::engine

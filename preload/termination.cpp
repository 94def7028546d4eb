#include "preload/termination.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>

#include "preload/context.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

namespace {

// The connection manager's thread writes the document, because this thread may hold any lock of the
// program, malloc's included. A second is more than the manager needs; then the process dies as it
// would have.
void on_sigterm(int) noexcept {
  const int saved = errno;
  run_on_manager(write_stats_file, 1000);
  errno = saved;
  // SA_RESETHAND has brought back the default action; the signal is unblocked when this returns.
  raise(SIGTERM);
}

}  // namespace

void write_stats_on_sigterm() noexcept {
  static std::atomic<bool> done{false};
  if (context().config.stats_file.empty() || done.exchange(true, std::memory_order_relaxed)) return;
  struct sigaction current {};
  if (sigaction(SIGTERM, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = on_sigterm;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace sidestep::preload

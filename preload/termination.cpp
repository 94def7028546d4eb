#include "preload/termination.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>

#include "engine/manager.hpp"
#include "engine/node.hpp"
#include "engine/sys.hpp"
#include "preload/context.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

std::atomic<bool> g_written{false};

void write_on_manager_thread() noexcept {
  write_stats_file();
  g_written.store(true, std::memory_order_release);
}

// The document is written by the connection manager's thread: this one may hold any lock of the
// program, malloc's included. A second is more than it needs; then the process dies as it would
// have.
void on_sigterm(int) noexcept {
  const int saved = errno;
  engine::Node* node = engine::Node::running();
  if (node != nullptr && node->pid() == static_cast<int>(sys::call(SYS_getpid))) {
    node->manager().run_from_signal(write_on_manager_thread);
    for (int i = 0; i < 1000 && !g_written.load(std::memory_order_acquire); ++i) {
      const timespec millisecond{0, 1'000'000};
      sys::ppoll(nullptr, 0, &millisecond, nullptr);
    }
  }
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

// The library's start and end, and what multiplies or ends a process.
#include <cerrno>
#include <cstdlib>

#include "engine/node.hpp"
#include "preload/context.hpp"
#include "preload/event_set.hpp"
#include "preload/export.hpp"
#include "preload/real.hpp"
#include "preload/socket.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

std::atomic<bool> g_ended{false};

/// Everything that has to be done before the process is gone, once.
void end_of_process() noexcept {
  // A child of vfork(), which shares this memory, or of a raw clone() ends here too: not its
  // streams.
  engine::Node* node = engine::Node::running();
  if (node == nullptr || node->pid() != getpid()) return;
  if (g_ended.exchange(true, std::memory_order_relaxed)) return;
  write_stats_file();
  Socket::finish_all();
}

__attribute__((constructor)) void on_load() {
  resolve_real();
}

__attribute__((destructor)) void on_unload() {
  end_of_process();
}

}  // namespace

SIDESTEP_EXPORT pid_t fork() {
  resolve_real();
  Socket::before_fork();
  EventSet::before_fork();
  const pid_t pid = real::fork();
  if (pid == 0) {
    EventSet::after_fork_in_child();
    Socket::after_fork_in_child();
    g_ended.store(false, std::memory_order_relaxed);
  }
  return pid;
}

SIDESTEP_EXPORT void _exit(int status) {
  resolve_real();
  end_of_process();
  real::_exit(status);
  __builtin_unreachable();
}

SIDESTEP_EXPORT void _Exit(int status) {
  _exit(status);
}

#include "preload/signals.hpp"

#include <csignal>

#include "engine/sys.hpp"

namespace sidestep::preload {
namespace {
// The kernel's struct sigaction, which is not libc's.
struct KernelAction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  uint64_t mask;
};
}  // namespace

bool all_handlers_restart() noexcept {
  for (int signal = 1; signal <= 64; ++signal) {
    KernelAction action{};
    if (engine::sys::call(SYS_rt_sigaction, signal, nullptr, &action, sizeof action.mask) < 0)
      continue;
    if (action.handler != SIG_DFL && action.handler != SIG_IGN && (action.flags & SA_RESTART) == 0)
      return false;
  }
  return true;
}

void raise_sigpipe() noexcept {
  engine::sys::call(SYS_tgkill, getpid(), engine::sys::call(SYS_gettid), SIGPIPE);
}

}  // namespace sidestep::preload

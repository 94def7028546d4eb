// The library's start and end, and what multiplies or ends a process.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <utmp.h>

#include <cerrno>
#include <cstdlib>

#include "engine/heap.hpp"
#include "engine/held_locks.hpp"
#include "engine/node.hpp"
#include "engine/progress_thread.hpp"
#include "engine/sys.hpp"
#include "engine/thread_end.hpp"
#include "preload/context.hpp"
#include "preload/event_set.hpp"
#include "preload/export.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"
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
  // Longer than finish_all() takes; it has limits of its own.
  run_outside_handler(
      []() noexcept {
        write_stats_file();
        Socket::finish_all();
      },
      8000);
}

__attribute__((constructor)) void on_load() {
  resolve_real();
  engine::prepare_thread_ends();
}

__attribute__((destructor)) void on_unload() {
  end_of_process();
}

}  // namespace

namespace {

/// With no other threads libc's fork() may be called by a handler, whatever that has interrupted.
/// With others, and the engine's are, it takes malloc's locks, which that code may hold.
bool only_engine_makes_threads() noexcept {
  struct stat tasks {};
  // A directory has two links more than it has directories.
  return engine::sys::call(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &tasks, 0) == 0 &&
         tasks.st_nlink <= 2 + 1 + engine::engine_threads();
}

/// In a handler; a stream whose locks are held there is not waited for.
constexpr int kMostMilliseconds = 5000;

[[gnu::noinline]] pid_t fork_by(pid_t (*way)()) noexcept {
  if (runs_in_handler() && only_engine_makes_threads()) way = real::_Fork;
  {
    const engine::HandlersWait first;
    run_outside_handler(
        []() noexcept {
          Socket::bring_all_down("fork");
          EventSet::before_fork();
        },
        kMostMilliseconds);
  }
  const pid_t pid = way();
  if (pid == 0) {
    const engine::HandlersWait first;
    engine::heap_after_fork();
    EventSet::after_fork_in_child();
    Socket::after_fork_in_child();
    engine::forget_cancellations_after_fork();
    engine::no_engine_threads();
    forget_work_after_fork();
    g_ended.store(false, std::memory_order_relaxed);
  }
  return pid;
}

}  // namespace

SIDESTEP_EXPORT pid_t fork() {
  resolve_real();
  return fork_by(real::fork);
}

SIDESTEP_EXPORT pid_t _Fork() {
  resolve_real();
  return fork_by(real::_Fork);
}

// The C library forks inside these, where the shim does not see it: as they are described in
// daemon(3) and forkpty(3), with the fork() above.

SIDESTEP_EXPORT int daemon(int keeps_directory, int keeps_output) {
  const pid_t pid = fork();
  if (pid < 0) return -1;
  // Not by the _exit() below: what the child goes on with does not end.
  if (pid > 0) {
    write_stats_file();
    real::_exit(0);
  }
  if (setsid() < 0) return -1;
  if (keeps_directory == 0 && chdir("/") != 0) return -1;
  if (keeps_output != 0) return 0;
  const int null = open("/dev/null", O_RDWR);
  struct stat status {};
  if (null < 0 || fstat(null, &status) != 0) return -1;
  if (!S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 3)) {
    close(null);
    errno = ENODEV;
    return -1;
  }
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, standard);
  if (null > STDERR_FILENO) close(null);
  return 0;
}

SIDESTEP_EXPORT int forkpty(int* controller, char* name, const termios* settings,
                            const winsize* size) {
  int terminal = -1;
  int own = -1;
  if (openpty(&own, &terminal, name, settings, size) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    close(own);
    if (login_tty(terminal) != 0) real::_exit(1);
    return 0;
  }
  close(terminal);
  if (pid < 0) {
    close(own);
  } else {
    *controller = own;
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

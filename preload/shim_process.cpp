// Calls that multiply or end a process.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <utmp.h>

#include <cerrno>

#include "engine/base/engine_threads.hpp"
#include "engine/base/sys.hpp"
#include "preload/context.hpp"
#include "preload/export.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

/// Ends the process past the library.
[[noreturn]] void end_at_once(int status) noexcept {
  real::_exit(status);
  for (;;) engine::sys::call(SYS_exit_group, status);  // where the C library has no _exit()
}

pid_t fork_by(pid_t (*way)()) noexcept {
  // In a process with no other threads, a handler may call libc's fork(), whatever it has
  // interrupted. With other threads, and the engine's are such, fork() takes malloc's locks, which
  // the interrupted code may hold.
  if (runs_in_handler() && engine::only_engine_has_other_threads() &&
      !real::is_missing(real::_Fork))
    way = real::_Fork;
  return static_cast<pid_t>(fork_as([way] { return way(); }));
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

// The C library forks inside these functions, where the shim does not see it. So they are defined
// here as daemon(3) and forkpty(3) describe them, with the fork() above.

SIDESTEP_EXPORT int daemon(int keeps_directory, int keeps_output) {
  const pid_t pid = fork();
  if (pid < 0) return -1;
  // The parent must not end by the _exit() below, which would end the streams that the child goes
  // on with.
  if (pid > 0) {
    write_stats_file();
    end_at_once(0);
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
    if (login_tty(terminal) != 0) end_at_once(1);
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
  end_at_once(status);
}

SIDESTEP_EXPORT void _Exit(int status) {
  _exit(status);
}

#pragma once
/// Helpers for a stream between this process and its parent, on the engine if both can have one.
#include <dlfcn.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "tests/programs/loopback.hpp"

namespace pair {

inline void pause_ms(int milliseconds) {
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  nanosleep(&time, nullptr);
}

/// True if both directions are on the engine, or if the library is not loaded.
inline bool is_on_engine(int fd) {
  static const auto carriers =
      reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "sidestep_carriers"));
  return carriers == nullptr || carriers(fd) == 3;
}

/// Sends a byte that the peer's echo() answers. For the end that decides when to stop.
inline bool ping(int fd) {
  char byte = 'p';
  return write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'p';
}

inline void leave_kernel(int fd) {
  int on_engine = 0;
  for (int i = 0; i < 2000 && on_engine < 3; ++i) {
    if (!ping(fd)) die("ping");
    on_engine = is_on_engine(fd) ? on_engine + 1 : 0;
    pause_ms(2);
  }
  if (on_engine == 0) die("the stream has not left the kernel");
}

/// Echoes until the stream ends; returns how it ended.
inline const char* echo(int fd) {
  char byte = 0;
  ssize_t got = 0;
  while ((got = read(fd, &byte, 1)) == 1)
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
  return got == 0 ? "end" : strerrorname_np(errno);
}

/// Waits for a child that may hang, and prints how it ended.
inline void print_end_of(pid_t child, int seconds = 20) {
  int status = 0;
  for (int i = 0; i < seconds * 100; ++i) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      std::printf("child: code %d signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                  WIFSIGNALED(status) ? WTERMSIG(status) : 0);
      return;
    }
    pause_ms(10);
  }
  std::printf("child: does not end\n");
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

}  // namespace pair

// Calls that put another program in the place of this one, or of one of its children.
#include <alloca.h>
#include <spawn.h>

#include <cerrno>
#include <cstdarg>

#include "engine/base/log.hpp"
#include "preload/export.hpp"
#include "preload/fault_handlers.hpp"
#include "preload/fd_table.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

/// `exec` returns only if no other program has taken this one's place.
template <typename Exec>
int try_exec(Exec exec) noexcept {
  resolve_real();
  leave_ignored_faults();
  const int result = before_exec() ? exec() : -1;
  answer_left_faults();
  return result;
}

// These turn the list of a variadic exec into an array. Neither they nor their callers allocate
// memory: a child of a program with threads must not.

size_t count_words(const char* first, va_list rest) noexcept {
  size_t count = 0;
  for (const char* word = first; word != nullptr; word = va_arg(rest, const char*)) ++count;
  return count;
}

void copy_words(char** words, const char* first, va_list rest) noexcept {
  for (const char* word = first;; word = va_arg(rest, const char*)) {
    *words++ = const_cast<char*>(word);
    if (word == nullptr) return;
  }
}

}  // namespace

SIDESTEP_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) {
  return try_exec([&] { return real::execve(path, argv, envp); });
}

SIDESTEP_EXPORT int execv(const char* path, char* const argv[]) {
  return try_exec([&] { return real::execv(path, argv); });
}

SIDESTEP_EXPORT int execvp(const char* file, char* const argv[]) {
  return try_exec([&] { return real::execvp(file, argv); });
}

SIDESTEP_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) {
  return try_exec([&] { return real::execvpe(file, argv, envp); });
}

SIDESTEP_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) {
  return try_exec([&] { return real::fexecve(fd, argv, envp); });
}

SIDESTEP_EXPORT int execveat(int fd, const char* path, char* const argv[], char* const envp[],
                             int flags) {
  return try_exec([&] { return real::execveat(fd, path, argv, envp, flags); });
}

SIDESTEP_EXPORT int execl(const char* path, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(alloca((count_words(first, rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  copy_words(words, first, rest);
  va_end(rest);
  return execv(path, words);
}

SIDESTEP_EXPORT int execlp(const char* file, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(alloca((count_words(first, rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  copy_words(words, first, rest);
  va_end(rest);
  return execvp(file, words);
}

SIDESTEP_EXPORT int execle(const char* path, const char* first, ...) {
  va_list rest;
  va_start(rest, first);
  auto** words = static_cast<char**>(alloca((count_words(first, rest) + 1) * sizeof(char*)));
  va_end(rest);
  va_start(rest, first);
  // Like copy_words(), but the environment follows the end of the list.
  char** place = words;
  for (const char* word = first;; word = va_arg(rest, const char*)) {
    *place++ = const_cast<char*>(word);
    if (word == nullptr) break;
  }
  char* const* const environment = va_arg(rest, char* const*);
  va_end(rest);
  return execve(path, words, environment);
}

SIDESTEP_EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t* actions, int fd,
                                                     int target) {
  resolve_real();
  {
    // libc makes the child's dup2() internally: now is the time to hand the stream over.
    const SocketRef socket(fd);
    if (socket && !socket->hands_over(engine::Reason::other_program)) {
      engine::log(engine::LogLevel::error,
                  "a stream whose bytes are not all in the kernel cannot be handed "
                  "to another program; posix_spawn_file_actions_adddup2 failed");
      return EIO;
    }
  }
  return real::posix_spawn_file_actions_adddup2(actions, fd, target);
}

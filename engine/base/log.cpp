#include "engine/base/log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "engine/base/sys.hpp"

namespace sidestep::engine {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warn};
// The path and not a descriptor: an open descriptor would take a number from the program and could
// be closed by it. Logging is rare enough to open the file for every line.
char g_path[512] = "";

// What standard error was at first. Its open file description cannot be told from another one of
// the same file. But in a file that two descriptors have in common, the log destroys no more than
// the program's own messages would.
struct {
  std::atomic<bool> known{false};
  bool exists = false;
  dev_t device = 0;
  ino_t inode = 0;
  dev_t special = 0;
  mode_t mode = 0;
} g_standard_error;

bool is_standard_error_as_it_was() noexcept {
  // acquire pairs with the release below. If it was never noted, the library was not loaded.
  if (!g_standard_error.known.load(std::memory_order_acquire)) return true;
  struct stat now {};
  return g_standard_error.exists && sys::fstat(STDERR_FILENO, &now) == 0 &&
         now.st_dev == g_standard_error.device && now.st_ino == g_standard_error.inode &&
         now.st_rdev == g_standard_error.special && (now.st_mode & S_IFMT) == g_standard_error.mode;
}

}  // namespace

void log_note_standard_error() noexcept {
  if (g_standard_error.known.load(std::memory_order_relaxed)) return;
  struct stat now {};
  g_standard_error.exists = sys::fstat(STDERR_FILENO, &now) == 0;
  g_standard_error.device = now.st_dev;
  g_standard_error.inode = now.st_ino;
  g_standard_error.special = now.st_rdev;
  g_standard_error.mode = now.st_mode & S_IFMT;
  g_standard_error.known.store(true, std::memory_order_release);
}

void log_open(LogLevel level, const std::string& file) noexcept {
  g_level.store(level, std::memory_order_relaxed);
  if (file.size() < sizeof g_path) file.copy(g_path, file.size());
  g_path[file.size() < sizeof g_path ? file.size() : 0] = '\0';
}

bool log_enabled(LogLevel level) noexcept {
  return level <= g_level.load(std::memory_order_relaxed);
}

void log(LogLevel level, const char* format, ...) noexcept {
  if (!log_enabled(level)) return;
  const int saved_errno = errno;
  char line[1024];
  int used = std::snprintf(line, sizeof line, "sidestep[%d] %s: ", static_cast<int>(getpid()),
                           config::name_of(level).data());
  va_list arguments;
  va_start(arguments, format);
  used +=
      std::vsnprintf(line + used, sizeof line - static_cast<size_t>(used) - 1, format, arguments);
  va_end(arguments);
  size_t length = static_cast<size_t>(used);
  if (length > sizeof line - 1) length = sizeof line - 1;
  line[length++] = '\n';
  const int fd =
      g_path[0] != '\0' ? sys::open(g_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
  if (fd >= 0) {
    sys::write(fd, line, length);
    sys::close(fd);
  } else if (is_standard_error_as_it_was()) {
    sys::write(STDERR_FILENO, line, length);
  }
  errno = saved_errno;
}

}  // namespace sidestep::engine

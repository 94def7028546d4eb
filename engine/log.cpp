#include "engine/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "engine/sys.hpp"

namespace sidestep::engine {
namespace {

std::atomic<LogLevel> g_level{LogLevel::warn};
// The path and not a descriptor: an open descriptor would take a number from the program and could
// be closed by it. Logging is rare enough to open the file for every line.
char g_path[512] = "";

}  // namespace

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
  if (g_path[0] == '\0') {
    sys::write(STDERR_FILENO, line, length);
  } else {
    const int fd = sys::open(g_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    sys::write(fd >= 0 ? fd : STDERR_FILENO, line, length);
    if (fd >= 0) sys::close(fd);
  }
  errno = saved_errno;
}

}  // namespace sidestep::engine

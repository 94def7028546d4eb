#pragma once
/// One line of text to standard error or SIDESTEP_LOG_FILE, prefixed "sidestep[pid] level: ".
/// Thread-safe; never allocates, never fails the caller. Lines are cut at 1 KiB.
#include <string>

#include "config/config.hpp"

namespace sidestep::engine {

using config::LogLevel;

/// Sets level and destination; `file` empty means standard error. Called once, before any thread.
void log_open(LogLevel level, const std::string& file) noexcept;
bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace sidestep::engine

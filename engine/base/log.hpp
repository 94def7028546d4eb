#pragma once
/// One line of text to standard error or SIDESTEP_LOG_FILE, prefixed "sidestep[pid] level: ".
/// Thread-safe; never allocates, never fails the caller. Lines are cut at 1 KiB.
///
/// Standard error is the file that the process had as descriptor 2 when the library was loaded. If
/// the program has closed it or put another file in its place, that file may hold the program's
/// data. Then nothing is written to it, and lines that have no log file are lost.
#include <string>

#include "config/config.hpp"

namespace sidestep::engine {

using config::LogLevel;

/// Sets level and destination; `file` empty means standard error. Called once, before any thread.
void log_open(LogLevel level, const std::string& file) noexcept;
/// Called when the library is loaded: notes what descriptor 2 is now.
void log_note_standard_error() noexcept;
bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace sidestep::engine

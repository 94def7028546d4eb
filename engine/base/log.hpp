#pragma once
/// One line of text to standard error or SIDESTEP_LOG_FILE, prefixed "sidestep[pid] level: ".
/// Thread-safe; never allocates, never fails the caller. Lines are cut at 1 KiB.
///
/// Standard error is the file that the process had as descriptor 2 when the library was loaded. A
/// program that has closed it, or put another file in its place, may have its data there: then
/// nothing is written to it, and lines without a file of their own are lost.
#include <string>

#include "config/config.hpp"

namespace sidestep::engine {

using config::LogLevel;

/// Sets level and destination; `file` empty means standard error. Called once, before any thread.
void log_open(LogLevel level, const std::string& file) noexcept;
/// When the library is loaded: what descriptor 2 is now.
void log_note_standard_error() noexcept;
bool log_enabled(LogLevel level) noexcept;
void log(LogLevel level, const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));

}  // namespace sidestep::engine

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The settings of a process: their values, and how they are read from the environment and a file.
///
/// Nothing here throws or aborts: a bad setting causes a complaint, and its default is used. The
/// functions keep no state and may be called from any thread; a Config is a plain value. Files are
/// read by raw system calls, because this code is part of a library that interposes the wrappers.
namespace sidestep::config {

enum class LogLevel : uint8_t { error, warn, info, debug };

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

/// The file that is read when SIDESTEP_CONFIG is not set, if it exists.
inline constexpr std::string_view kDefaultFile = "/etc/sidestep.conf";

/// The kinds of option in options.def, each with the type that holds its value.
namespace kinds {
using yes_no = bool;         ///< yes, no, on, off, true, false, 1, 0
using level = LogLevel;      ///< the name of a LogLevel
using number = uint32_t;     ///< decimal, within bounds
using size = uint64_t;       ///< bytes, or with a suffix K, M or G (powers of 1024), within bounds
using power = uint64_t;      ///< a size that is a power of two
using path = std::string;    ///< a path with %p and %%, see expand()
using file = std::string;    ///< a path, taken as it is
using device = std::string;  ///< auto, shm, verbs, verbs:NAME, none
using nodes = std::string;   ///< see nodes.hpp
using rules = std::string;   ///< see rules.hpp
using folder = std::string;  ///< an absolute path, or empty
using trust = std::string;   ///< see trust.hpp
}  // namespace kinds

/// One member per line of options.def, with its default. Sizes are bytes.
struct Config {
#define OPTION(kind, member, NAME, default_value, min, max, unit, text) \
  kinds::kind member = default_value;
#include "config/options.def"
};

struct Loaded {
  Config config;
  /// One line for each bad setting: the variable, its value, what is allowed, and that the default
  /// is used. The lines are printable and have no line end. The caller of load() logs them.
  std::vector<std::string> complaints;
};

/// Returns the settings of this process from `environ_block` (in the form of environ; null stands
/// for an empty one) and from the configuration file. The environment overrides the file, and a
/// later line of the file overrides an earlier one; overridden values are not checked. An empty
/// value means the default. If memory runs out, returns the defaults. Leaves errno alone.
Loaded load(char const* const* environ_block) noexcept;

/// Does the same as load() without touching the file system: `file_text` stands for the contents
/// of the configuration file and `file_name` for its name in complaints.
Loaded load_text(std::string_view file_text, std::string_view file_name,
                 char const* const* environ_block) noexcept;

/// Returns `pattern` with %p replaced by `pid` and %% by a percent sign; any other % stays. Empty
/// if memory runs out.
std::string expand(std::string const& pattern, int pid) noexcept;

/// Returns the name of a level as it is written in SIDESTEP_LOG_LEVEL.
std::string_view name_of(LogLevel level) noexcept;

}  // namespace sidestep::config

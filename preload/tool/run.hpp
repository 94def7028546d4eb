#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sidestep::tool {

/// Exit codes of `sidestep run` when no command ran that could give its own. They are those of a
/// shell or env(1).
inline constexpr int kRunFailed = 125;
inline constexpr int kCannotExecute = 126;
inline constexpr int kNotFound = 127;

/// Pairs of variable and value, in the order of the command line.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Returns the flag of a variable: --spin-us for SIDESTEP_SPIN_US.
std::string flag_of(std::string_view variable);

/// Replaces this process by `command`, which runs under the library with `settings` in its
/// environment. Returns only if that fails: prints a line on standard error and returns the exit
/// code. The caller has checked `settings`.
int run(Settings const& settings, std::vector<std::string> command);

}  // namespace sidestep::tool

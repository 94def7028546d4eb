#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sidestep::tool {

/// Exit codes of `sidestep run` as of a shell or env(1), when there is no command to give its own.
inline constexpr int kRunFailed = 125;
inline constexpr int kCannotExecute = 126;
inline constexpr int kNotFound = 127;

/// Variable and value, in the order of the command line.
using Settings = std::vector<std::pair<std::string, std::string>>;

/// The flag of a variable: SIDESTEP_SPIN_US is --spin-us.
std::string flag_of(std::string_view variable);

/// Becomes `command` under the library with `settings` in its environment. Returns only if that
/// fails, with the exit code, after a line on standard error. `settings` have been checked.
int run(Settings const& settings, std::vector<std::string> command);

}  // namespace sidestep::tool

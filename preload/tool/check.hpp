#pragma once

#include <string>
#include <vector>

namespace sidestep::tool {

struct CheckRequest {
  bool json = false;
  std::vector<std::string> targets;  ///< HOST or HOST:PORT
};

/// Reports what works on this machine, and what to do about anything that does not. Returns the
/// exit code: 1 if something fails.
int check(CheckRequest const& request);

}  // namespace sidestep::tool

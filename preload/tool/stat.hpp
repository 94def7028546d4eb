#pragma once

namespace sidestep::tool {

struct StatRequest {
  int pid = 0;        ///< 0 means every process of this user
  bool json = false;  ///< the documents themselves instead of text
  int interval = 0;   ///< seconds between views; 0 shows one and exits
};

/// Shows the status of this user's processes that run under the library. Returns the exit code: 1
/// if the requested PID is not among them.
int stat(StatRequest const& request);

}  // namespace sidestep::tool

#pragma once

namespace sidestep::tool {

struct StatRequest {
  int pid = 0;        ///< 0 is every process of this user
  bool json = false;  ///< the documents themselves instead of text
  int interval = 0;   ///< seconds between views; 0 shows one and ends
};

/// Shows the status of the processes of this user under the library. Returns the exit code: 1 if
/// the PID that was asked for is not among them.
int stat(StatRequest const& request);

}  // namespace sidestep::tool

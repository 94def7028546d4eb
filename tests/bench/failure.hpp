#pragma once
/// The reason why a run is invalid. Two places catch it: a node reports it, the coordinator prints
/// it.
#include <stdexcept>

namespace sidestep::bench {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace sidestep::bench

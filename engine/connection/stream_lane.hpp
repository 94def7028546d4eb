#pragma once
/// Which lane (lane.hpp) a stream between two processes of a host belongs to: both ends find the
/// same without asking.
#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

/// The next ones for which the kernel chooses a port, which is of the same parity, have the next
/// lanes.
constexpr uint16_t lane_of(const Tuple& tuple) noexcept {
  return static_cast<uint16_t>((tuple.local.port + tuple.remote.port) / 2 % kLanes);
}

}  // namespace sidestep::engine

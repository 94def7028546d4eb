#pragma once
/// Which lane (lane.hpp) a stream between two processes of a host belongs to: both ends compute the
/// same one without asking.
#include <cstdint>

#include "engine/base/address.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

/// For connections to one port the kernel chooses ports of one parity, as a rule a few apart, so
/// streams that are made one after the other are spread over the lanes.
constexpr uint16_t lane_of(const Tuple& tuple) noexcept {
  return static_cast<uint16_t>((tuple.local.port + tuple.remote.port) / 2 % kLanes);
}

}  // namespace sidestep::engine

#pragma once
/// What two processes must have in common before they read anything else of each other's.
#include <cstdint>

namespace sidestep::engine {

/// Changes with every incompatible change of anything in this folder, in shm/layout.hpp, or in
/// verbs/trailer.hpp and verbs/compact_form.hpp.
inline constexpr uint16_t kProtocolVersion = 20;

/// The most lanes of a node (engine/progress/lane.hpp), and so connections between two nodes.
inline constexpr uint32_t kLanes = 4;

}  // namespace sidestep::engine

#pragma once
#include <cstdint>

namespace sidestep::engine {

/// What carries one direction of a stream at a byte: the kernel's TCP connection (the anchor), or
/// the engine.
enum class Carrier : uint8_t { kernel, engine };

}  // namespace sidestep::engine

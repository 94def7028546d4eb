#pragma once

namespace sidestep::engine {

/// The longest time between two polls while no thread of the program polls (ProgressThread), in
/// milliseconds.
inline constexpr int kLongestTick = 200;

}  // namespace sidestep::engine

#pragma once

namespace sidestep::engine {

/// How rarely a process polls at most, in milliseconds, when nobody in it does (ProgressThread).
inline constexpr int kLongestTick = 200;

}  // namespace sidestep::engine

#pragma once

namespace sidestep::engine {

/// A process polls no less often where nobody in it does, in milliseconds (ProgressThread).
inline constexpr int kLongestTick = 200;

}  // namespace sidestep::engine

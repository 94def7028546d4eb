#pragma once
/// Numbers that nobody can guess.
#include <sys/random.h>

#include <cstdint>

#include "engine/base/clock.hpp"

namespace sidestep::engine {

/// Falls back to the time if the kernel has no random numbers yet, early after boot. Never blocks.
/// Any thread.
inline uint64_t random_number() noexcept {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number) number = now_ns();
  return number;
}

}  // namespace sidestep::engine

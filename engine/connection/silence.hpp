#pragma once
#include <cstdint>

#include "engine/base/lock.hpp"

namespace sidestep::engine {

/// What is known of a peer that does not answer. Part of its connection;
/// engine/progress/patience.hpp consults and updates it.
struct Silence {
  Mutex lock;                        // guards all that follows
  uint64_t received = ~uint64_t{0};  ///< work requests, when the peer was last waited for
  bool found = false;                ///< the peer has been waited for in vain since
  uint64_t asked_at = 0;             ///< when the current call began to count its wait
  uint64_t looked_at = 0;
  uint64_t asleep_since = 0;  ///< 0: the peer ran when it was last looked at
  unsigned stopped = 0;       ///< looks in a row that found the peer stopped
};

}  // namespace sidestep::engine

#pragma once
/// What a thread sleeps on until something comes for a stream from a process of the same host
/// (Endpoint::nap, Sleeper::nap).
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

struct Nap {
  const std::atomic<uint32_t>* word = nullptr;  ///< which the peer writes
  uint32_t value = 0;                           ///< that it has as long as nothing has come
};

}  // namespace sidestep::engine

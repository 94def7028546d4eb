#pragma once
/// What a thread sleeps on until a process of the same host sends something for a stream
/// (Endpoint::nap, Sleeper::nap).
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

struct Nap {
  const std::atomic<uint32_t>* word = nullptr;  ///< written by the peer
  uint32_t value = 0;                           ///< what the word holds as long as nothing has come
};

}  // namespace sidestep::engine

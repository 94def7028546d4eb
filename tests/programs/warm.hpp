#pragma once
/// Moves streams off the kernel before a program starts its real work.
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "preload/sidestep.h"
#include "tests/programs/die.hpp"

#pragma weak sidestep_carriers

namespace pair {

/// True if both directions are on the engine, or if there is no engine.
inline bool is_up(int fd) {
  constexpr int kBoth = SIDESTEP_SENDS_BY_ENGINE | SIDESTEP_RECEIVES_BY_ENGINE;
  return sidestep_carriers == nullptr || sidestep_carriers(fd) == kBoth;
}

/// Uses both directions of each stream between two blocking sockets of this process until all are
/// on the engine (if there is one), for at most 20 seconds. Warms all streams together because each
/// takes a while.
inline void warm(const std::vector<std::pair<int, int>>& streams) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  char byte = 'x';
  const auto pass = [&](int from, int to) {
    if (send(from, &byte, 1, 0) != 1 || recv(to, &byte, 1, MSG_WAITALL) != 1) die("warming");
  };
  const auto are_up = [](const auto& stream) {
    return is_up(stream.first) && is_up(stream.second);
  };
  do {
    for (const auto& [fd, other] : streams) {
      pass(fd, other);
      pass(other, fd);
    }
  } while (!std::all_of(streams.begin(), streams.end(), are_up) &&
           std::chrono::steady_clock::now() < limit);
}

}  // namespace pair

#pragma once
/// One of several processes that pass tokens to and fro, each over streams to all the others, and
/// what they and the program that disturbs them have in common. 64-bit Linux.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace wakes {

inline constexpr size_t kMostProcesses = 8;
inline constexpr size_t kMostStreams = 16;  ///< between two of them

/// In memory that all processes share: zeroed, and only ever used by atomic instructions.
struct Board {
  std::atomic<bool> over;  ///< nothing is passed on any more
  std::atomic<uint64_t>
      wrong;  ///< tokens that were not the next one, and streams that broke by themselves
  std::atomic<uint64_t> cancelled;          ///< threads, while they waited
  std::atomic<bool> ready[kMostProcesses];  ///< for signals
  std::atomic<size_t>
      up[kMostProcesses];  ///< ends of streams that are on the engine, if there is one
  /// Odd while a process is about to be killed and until it is dead: its streams break then.
  std::atomic<uint64_t> life[kMostProcesses];
  std::atomic<uint64_t> hops[kMostProcesses][kMostProcesses]
                            [kMostStreams];  ///< [own][other][stream]
};

struct Worker {
  Board* board;
  size_t own;
  size_t processes;
  size_t streams;
  const int* ports;  ///< of all processes
};

/// Returns when the board says that it is over, with what main() returns.
int work(const Worker& worker);

}  // namespace wakes

#pragma once
/// One of several processes that pass tokens back and forth, each over streams to all the others,
/// and what they share with the program that disturbs them. 64-bit Linux.
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace wakes {

inline constexpr size_t kMostProcesses = 8;
inline constexpr size_t kMostStreams = 16;  ///< between two processes

/// Lies in memory that all processes share: initially zero and only accessed atomically.
struct Board {
  std::atomic<bool> over;  ///< the run is over: the processes stop passing tokens
  /// Counts unexpected tokens, and streams that broke although no process had been killed.
  std::atomic<uint64_t> wrong;
  std::atomic<uint64_t> cancelled;          ///< counts threads cancelled while they waited
  std::atomic<bool> ready[kMostProcesses];  ///< the process can take signals
  /// Counts ends of streams that are on the engine (or all ends, if there is no engine).
  std::atomic<size_t> up[kMostProcesses];
  /// Odd from just before a process is killed until it is dead: its streams break then.
  std::atomic<uint64_t> life[kMostProcesses];
  std::atomic<uint64_t> hops[kMostProcesses][kMostProcesses]
                            [kMostStreams];  ///< [own][other][stream]
};

struct Worker {
  Board* board;
  size_t own;
  size_t processes;
  size_t streams;
  const int* ports;  ///< one per process
};

/// Runs until the board says that the run is over. Returns the exit code for main().
int work(const Worker& worker);

}  // namespace wakes

#pragma once
/// Whether another process of this host can do anything at the moment.
#include <cstdint>

namespace sidestep::engine {

enum class ProcessState : uint8_t {
  runs,     ///< one of its threads runs, or waits for a processor or a disk
  sleeps,   ///< none of its threads runs, and one at least waits for something to happen
  stopped,  ///< by a signal or a debugger: nothing that happens changes that
  unknown,  ///< the kernel does not tell
};

/// Allocates nothing. Reads a file for each thread: not for the hot path.
ProcessState state_of_process(int pid) noexcept;

}  // namespace sidestep::engine

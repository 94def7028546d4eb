#pragma once
/// Whether another process of this host can do anything at the moment.
#include <cstdint>

namespace sidestep::engine {

enum class ProcessState : uint8_t {
  runs,     ///< a thread of it runs, or waits for a processor or a disk
  sleeps,   ///< each of its threads waits for something to happen
  stopped,  ///< by a signal or a debugger: nothing that happens changes that
  unknown,  ///< the kernel does not tell
};

/// Allocates nothing. A file for each thread is read: not for the hot path.
ProcessState state_of_process(int pid) noexcept;

}  // namespace sidestep::engine

#pragma once
/// The end of the engine in a process that goes on.
///
/// On Linux, each thread has its own rights: its capabilities, its sandbox, its namespaces, its
/// table of descriptors. A program that gives rights away means everything that runs in its
/// process, and when it asks whether it has threads it means its own threads. So before such a call
/// all streams go to the kernel for good, the engine's threads end, and whatever the engine has
/// open is closed.
#include "engine/base/reason.hpp"

namespace sidestep::preload {

enum class Retirement {
  until_fork,  ///< a child may start an engine of its own, with the rights the caller has left
  for_good,    ///< nor may a child: it would share memory or descriptors with another process
};

/// Ends the engine. If no engine runs, only `for_good` has an effect. In a child of vfork() this
/// does nothing at all.
void retire_engine(engine::Reason reason, Retirement until) noexcept;

/// Notes which process this is; a child of vfork() is not that process. Called at the start, and in
/// the child of a fork.
void note_own_process() noexcept;

}  // namespace sidestep::preload

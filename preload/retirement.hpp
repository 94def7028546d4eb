#pragma once
/// The end of the engine in a process that goes on.
///
/// What a thread may do is a matter of that thread on Linux: its capabilities, its sandbox, its
/// namespaces, its table of descriptors. A program that gives rights away means all that runs in
/// its process, and where it asks whether it has threads it means its own. So before such a call
/// all streams go to the kernel for good, the engine's threads end, and what the engine has open is
/// closed.
#include "engine/base/reason.hpp"

namespace sidestep::preload {

enum class Retirement {
  until_fork,  ///< a child may start an engine of its own: it has what the caller has left
  for_good,    ///< not in a sandbox that an engine could not live in
};

/// Nothing but the second happens where no engine runs. In a child of vfork() nothing does.
void retire_engine(engine::Reason reason, Retirement until) noexcept;

/// Notes which process this is, which a child of vfork() is not: at the start, and in a child.
void note_own_process() noexcept;

}  // namespace sidestep::preload

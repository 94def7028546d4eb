#pragma once
/// Where a call on a stream lets libc cancel its thread (engine/base/cancellation.hpp).
///
/// Used only in the outermost frames of the calls, as libc's own cancellation points are. Such
/// a frame has nothing to undo, not even a noexcept, so that it can be unwound. Code that has
/// something to undo is in separate functions, which are not inlined. The shim_*.cpp files are
/// compiled without exceptions for the same reason: the unwinder must find nothing to do there.
/// (The library has a C++ runtime of its own, to which libc's unwinder is foreign.)
#include <pthread.h>

#include "engine/base/cancellation.hpp"

namespace sidestep::preload {

inline void cancellation_point() {
  // relaxed: as in NotCancelled.
  if (!engine::threads_are_cancelled.load(std::memory_order_relaxed)) [[likely]]
    return;
  engine::answer_cancellation();
  pthread_testcancel();
}

}  // namespace sidestep::preload

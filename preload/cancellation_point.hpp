#pragma once
/// Where a call on a stream lets libc cancel its thread (engine/base/cancellation.hpp).
///
/// Used in the outermost frames of the calls, and there only, as libc's own cancellation points
/// are: frames with nothing to undo, not even a noexcept, so that they can be unwound. What has to
/// be undone is in functions of its own, which are not inlined. The shim_*.cpp are compiled without
/// exceptions for the same reason: the unwinder must find nothing to do there. (The library has a
/// C++ runtime of its own, to which the unwinder of libc is foreign.)
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

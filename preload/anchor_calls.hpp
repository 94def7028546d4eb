#pragma once
/// What reading and writing share where the kernel carries a direction: calls on the anchor.
#include <sys/uio.h>

#include <cstddef>

namespace sidestep::preload {

/// Used where a call goes to the kernel anyway, on a stream that may be about to move: what moves
/// it may be there already, and on a busy machine this thread runs sooner than the engine's.
void help_streams_to_move() noexcept;

/// Makes one non-blocking kernel call on a part of the vector. Returns the result or -errno.
long anchor_call(bool receiving, int fd, const iovec* vector, int count, size_t offset,
                 size_t limit, int flags) noexcept;

}  // namespace sidestep::preload

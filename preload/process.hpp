#pragma once
/// What happens to streams when the process is copied, becomes another program, or ends.

#include <sys/types.h>

namespace sidestep::preload {

/// Called before the memory is copied for a child: brings all streams down to the kernel.
void before_fork() noexcept;
/// Called in the parent, whether or not there is a child.
void after_fork_in_parent() noexcept;

/// What else the calls of the C library have to do in become_child(); the library's constructor
/// sets it.
extern void (*on_becoming_child)() noexcept;
/// Called in a child that has a copy of its parent's memory. The engine is the parent's, and so is
/// whatever could not be brought down; everything else is a plain kernel socket here. If
/// `closes_descriptors` is false, the library's descriptors are the parent's, as all others are.
/// Returns true if the child has lost a stream that the parent still has.
bool become_child(bool closes_descriptors = true) noexcept;

/// Called where engine::is_copy() is true: the child was made past the library, so nobody has
/// brought its streams down first. Streams that were on the engine end with ECONNRESET here.
void settle_copy() noexcept;

/// Makes a child by calling `way`, which returns as fork() does. Inlined, because a child that has
/// another stack must not need frames that have already been left.
template <typename Way>
[[gnu::always_inline]] inline long fork_as(const Way& way, bool closes_descriptors = true) {
  before_fork();
  const long pid = way();
  if (pid == 0) {
    become_child(closes_descriptors);
  } else {
    after_fork_in_parent();
  }
  return pid;
}

/// Called before another program takes the place of this one: turns all streams into plain kernel
/// sockets, both those that the next program inherits and those that end with this one. The latter
/// can't be ended here because exec may fail. Returns false, with errno, if exec must not go ahead.
bool before_exec() noexcept;

/// Does everything that has to be done before the process is gone, but only once.
void end_of_process() noexcept;

}  // namespace sidestep::preload

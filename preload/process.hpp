#pragma once
/// What happens to streams when the process is copied, becomes another program, or ends.

#include <sys/types.h>

namespace sidestep::preload {

/// Before the memory is copied for a child: all streams are brought down to the kernel.
void before_fork() noexcept;
/// In the parent, whether there is a child or not.
void after_fork_in_parent() noexcept;

/// What the calls of the C library have to do then besides; set by the library's constructor.
extern void (*on_becoming_child)() noexcept;
/// In a child that has a copy of its parent's memory: the engine is the parent's, and so is what
/// could not be brought down; all else is plain kernel sockets here. Not `closes_descriptors`: the
/// library's are the parent's, as all are. Whether a stream is lost to it that the parent has.
bool become_child(bool closes_descriptors = true) noexcept;

/// Where engine::is_copy(): the child was made past the library, and nobody has brought its streams
/// down before. Those that were on the engine end with ECONNRESET here.
void settle_copy() noexcept;

/// `way`, which returns as fork() does. Inlined, because frames that have been left may not be
/// needed in a child that has another stack.
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

/// Before another program takes the place of this one: all streams become plain kernel sockets,
/// those that the next program inherits, and those that end with this one, which can't be ended
/// here because exec may fail. False, with errno: it must not go on.
bool before_exec() noexcept;

/// Everything that has to be done before the process is gone, once.
void end_of_process() noexcept;

}  // namespace sidestep::preload

#pragma once
/// Whose a descriptor number is: the one place that asks all the tables.
///
/// Calls that move bytes ask for nothing but streams. They use FdTable::peek(), the part of this
/// lookup that costs one load and one branch.
#include <cstdint>

#include "engine/base/private_fd.hpp"
#include "preload/event_set_table.hpp"
#include "preload/fd_table.hpp"

namespace sidestep::preload {

enum class DescriptorKind : uint8_t {
  foreign,    ///< the program's, and none of the library's business
  stream,     ///< the program's, and FdTable has a socket for it
  epoll_set,  ///< the program's, and EventSetTable may have a set for it
  ours,       ///< the library's own: the program does not know it
};

/// True if `fd` is one of the library's own numbers. If the program wants such a number, ours would
/// have to move. That is not supported, and no program asks for a number that it was never given.
/// The program gets the error for a number out of range.
inline bool is_ours(int fd) noexcept {
  return engine::is_private_fd(fd);
}

/// Says what a call that waits has to do with `fd`. The kernel serves the library's own numbers
/// like any others, so they count as foreign.
inline DescriptorKind kind_to_wait_for(int fd) noexcept {
  if (FdTable::peek(fd) != nullptr) return DescriptorKind::stream;
  return EventSetTable::may_be_set(fd) ? DescriptorKind::epoll_set : DescriptorKind::foreign;
}

/// Says what `fd` is. A number of ours is ours, even if a table still has what was closed under it
/// past the library.
inline DescriptorKind kind_of(int fd) noexcept {
  return is_ours(fd) ? DescriptorKind::ours : kind_to_wait_for(fd);
}

}  // namespace sidestep::preload

#include "preload/tracked_call.hpp"

#include "preload/hazard_guard.hpp"

namespace sidestep::preload {

ssize_t counted(int fd, bool received, ssize_t result) noexcept {
  if (result <= 0) return result;
  const HazardGuard guard(fd);  // after the call, which may have slept
  if (guard && guard->is_plain()) guard->count_plain(received, static_cast<size_t>(result));
  return result;
}

bool is_served_by_kernel(int fd) noexcept {
  if (FdTable::peek(fd) == nullptr) return true;
  if (const HazardGuard guard(fd); guard) return guard->is_plain();
  const SocketRef socket(fd);
  if (!socket || !socket->is_plain()) return false;
  FdTable::admit_guards(fd, *socket);
  return true;
}

}  // namespace sidestep::preload

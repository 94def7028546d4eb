// What the library exports besides the calls of libc.
#include <cerrno>

#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/sidestep.h"

using namespace sidestep::preload;
using sidestep::engine::Carrier;

SIDESTEP_EXPORT int sidestep_carriers(int fd) {
  const SocketRef socket(fd);
  if (!socket) {
    errno = ENOENT;
    return -1;
  }
  sidestep::engine::Stream& stream = socket->stream();
  stream.receiver().note_reading();
  stream.sender().note_writing();
  return (stream.sender().carrier() == Carrier::engine ? SIDESTEP_SENDS_BY_ENGINE : 0) |
         (stream.receiver().carrier() == Carrier::engine ? SIDESTEP_RECEIVES_BY_ENGINE : 0);
}

SIDESTEP_EXPORT int sidestep_switch(int fd) {
  const SocketRef socket(fd);
  if (!socket || !socket->stream().is_bound()) {
    errno = ENOENT;
    return -1;
  }
  socket->stream().request_down(sidestep::engine::Reason::none);
  return 0;
}

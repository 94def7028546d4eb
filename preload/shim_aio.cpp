// POSIX AIO. Threads of libc read and write there, inside libc, where the shim does not see it: the
// stream goes to the kernel first.
#include <aio.h>

#include <cerrno>

#include "engine/log.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/real.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

/// False: some of it could not be read there, and the request must not be made.
[[gnu::noinline]] bool leaves_for(int fd) noexcept {
  const SocketRef socket(fd);
  if (!socket || socket->hands_over("POSIX AIO")) return true;
  engine::log(engine::LogLevel::error,
              "a stream with unread bytes, or of which the peer has some yet, cannot be read by "
              "POSIX AIO; the request failed");
  errno = EAGAIN;
  return false;
}

template <typename Request>
bool all_leave(Request* const* list, int count) noexcept {
  bool leave = true;
  for (int i = 0; i < count; ++i)
    if (list[i] != nullptr && list[i]->aio_lio_opcode != LIO_NOP)
      leave = leaves_for(list[i]->aio_fildes) && leave;
  return leave;
}

}  // namespace

SIDESTEP_EXPORT int aio_read(aiocb* request) noexcept {
  resolve_real();
  return leaves_for(request->aio_fildes) ? real::aio_read(request) : -1;
}

SIDESTEP_EXPORT int aio_read64(aiocb64* request) noexcept {
  resolve_real();
  return leaves_for(request->aio_fildes) ? real::aio_read64(request) : -1;
}

SIDESTEP_EXPORT int aio_write(aiocb* request) noexcept {
  resolve_real();
  return leaves_for(request->aio_fildes) ? real::aio_write(request) : -1;
}

SIDESTEP_EXPORT int aio_write64(aiocb64* request) noexcept {
  resolve_real();
  return leaves_for(request->aio_fildes) ? real::aio_write64(request) : -1;
}

SIDESTEP_EXPORT int lio_listio(int mode, aiocb* const list[], int count, sigevent* event) noexcept {
  resolve_real();
  return all_leave(list, count) ? real::lio_listio(mode, list, count, event) : -1;
}

SIDESTEP_EXPORT int lio_listio64(int mode, aiocb64* const list[], int count,
                                 sigevent* event) noexcept {
  resolve_real();
  return all_leave(list, count) ? real::lio_listio64(mode, list, count, event) : -1;
}

// POSIX AIO. Threads of libc read and write inside libc, where the shim does not see it, so the
// stream goes to the kernel first. The same holds for the kernel's own AIO.
#include <aio.h>

#include <cerrno>

#include "engine/base/log.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/real.hpp"
#include "preload/shim_aio.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

/// Moves a stream to the kernel. Returns false if some of its bytes could not be read there; then
/// the request must not be made.
[[gnu::noinline]] bool leaves_for(int fd,
                                  engine::Reason reason = engine::Reason::posix_aio) noexcept {
  const SocketRef socket(fd);
  if (!socket || socket->hands_over(reason)) return true;
  engine::log(engine::LogLevel::error,
              "a stream whose bytes are not all in the kernel cannot be used by "
              "%s; the request failed",
              engine::text_of(reason));
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

bool sidestep::preload::all_leave_for_kernel_aio(iocb* const* list, long count) noexcept {
  bool leave = true;
  for (long i = 0; i < count; ++i) {
    iocb* at = nullptr;
    iocb request;
    // If the memory of a request is not there, the kernel says what it thinks of that.
    if (!engine::get_from(&list[i], at) || !engine::get_from(at, request)) break;
    leave = leaves_for(static_cast<int>(request.aio_fildes), engine::Reason::io_submit) && leave;
  }
  return leave;
}

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

// sendfile and splice, which move bytes that the kernel would move by itself.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "engine/base/cancellation.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/cancellation_point.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/libc_result.hpp"
#include "preload/real.hpp"
#include "preload/tracked_call.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

/// Bytes that came over the engine before the stream went down are not in the kernel's socket, so
/// they are copied into the pipe first. Reads only as many bytes as the pipe takes, so that none
/// can be lost. EAGAIN: the pipe is full.
ssize_t splice_residue(Socket& source, int pipe, size_t size) noexcept {
  // PIPE_BUF: a pipe that is ready for writing takes this much in one piece.
  char buffer[4096] = {};
  pollfd room{pipe, POLLOUT, 0};
  const timespec now{};
  const int ready = sys::ppoll(&room, 1, &now, nullptr);
  if (ready <= 0) return fail(ready == 0 ? EAGAIN : -ready);
  // Nobody reads the pipe: the write ends in a signal and an error, and no bytes are taken.
  if ((room.revents & POLLERR) != 0) return as_libc(sys::write(pipe, buffer, 1));
  const iovec part{buffer, std::min(size, sizeof buffer)};
  const ssize_t got = source.receive(&part, 1, MSG_DONTWAIT);
  if (got <= 0) return got;
  const long put = sys::write(pipe, buffer, static_cast<size_t>(got));
  return as_libc(put);
}

/// Pages that move between pipe and socket cannot be followed, so the streams go to the kernel.
/// Returns true if there were bytes that are not in the kernel: `result` says what became of them.
[[gnu::noinline]] bool splice_by_engine(int from, int to, size_t size, ssize_t& result) noexcept {
  SocketRef source(from);
  SocketRef sink(to);
  const auto hands_over = [](Socket& socket) {
    return socket.hands_over(engine::Reason::splice,
                             1);  // a second: the program serves other streams, too
  };
  if (sink && !hands_over(*sink) && sink->is_torn()) {
    result = fail(EIO);  // its peer does not answer: the bytes would get out of order
    return true;
  }
  if (!source || hands_over(*source)) return false;
  result = splice_residue(*source, to, size);
  return true;
}

/// Copies the file's pages into the ring from a bounce buffer. Bytes that were read and not sent
/// are not consumed, because a file can be read again at any offset.
ssize_t send_file(Socket& socket, int from, off64_t* offset, size_t size) noexcept {
  struct stat status {};
  if (fstat(from, &status) != 0) return -1;
  if ((sys::fcntl(from, F_GETFL, 0) & O_ACCMODE) == O_WRONLY) return fail(EBADF);
  if (!S_ISREG(status.st_mode) && !S_ISBLK(status.st_mode))
    return fail(offset != nullptr && lseek64(from, 0, SEEK_CUR) < 0 ? errno : EINVAL);
  off64_t position = 0;
  if (offset == nullptr) position = lseek64(from, 0, SEEK_CUR);
  if (offset != nullptr && !engine::get_from(offset, position)) return fail(EFAULT);
  if (position < 0) return offset != nullptr ? fail(EINVAL) : -1;
  constexpr size_t kPiece = 64 * 1024;
  char* buffer = static_cast<char*>(std::malloc(std::min(size, kPiece)));
  if (buffer == nullptr && size != 0) return fail(ENOMEM);
  size_t done = 0;
  int error = 0;
  while (done < size) {
    // Not libc's pread64(), which may cancel the thread.
    const ssize_t got =
        sys::call(SYS_pread64, from, buffer, std::min(size - done, kPiece), position);
    if (got <= 0) {
      error = static_cast<int>(-got);
      break;
    }
    const iovec part{buffer, static_cast<size_t>(got)};
    const ssize_t sent = socket.transmit(&part, 1, 0);
    if (sent < 0) {
      error = errno;
      break;
    }
    done += static_cast<size_t>(sent);
    position += sent;
    if (sent < got) break;
  }
  std::free(buffer);
  if (offset == nullptr) {
    lseek64(from, position, SEEK_SET);
  } else if (!engine::put_to(offset, position)) {
    return fail(EFAULT);
  }
  if (done == 0 && error != 0) return fail(error);
  return static_cast<ssize_t>(done);
}

}  // namespace

SIDESTEP_EXPORT ssize_t sendfile64(int to, int from, off64_t* offset, size_t size) {
  resolve_real();
  if (is_served_by_kernel(to)) return counted(to, false, real::sendfile64(to, from, offset, size));
  // Not a cancellation point, because libc's sendfile() is none.
  const bool cancelled = engine::threads_are_cancelled.load(std::memory_order_relaxed);
  int state = PTHREAD_CANCEL_ENABLE;
  if (cancelled) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  const auto result =
      on_tracked(to, [&](Socket& socket) { return send_file(socket, from, offset, size); });
  if (cancelled) pthread_setcancelstate(state, nullptr);
  return result ? *result : real::sendfile64(to, from, offset, size);
}

SIDESTEP_EXPORT ssize_t sendfile(int to, int from, off_t* offset, size_t size) {
  static_assert(sizeof(off_t) == sizeof(off64_t));
  return sendfile64(to, from, offset, size);
}

SIDESTEP_EXPORT ssize_t splice(int from, off64_t* from_offset, int to, off64_t* to_offset,
                               size_t size, unsigned flags) {
  resolve_real();
  cancellation_point();
  ssize_t result = 0;
  while (splice_by_engine(from, to, size, result)) {
    if (result >= 0 || errno != EAGAIN || (flags & SPLICE_F_NONBLOCK) != 0) return result;
    pollfd room{to, POLLOUT, 0};
    if (real::poll(&room, 1, -1) < 0) return -1;
  }
  return real::splice(from, from_offset, to, to_offset, size, flags);
}

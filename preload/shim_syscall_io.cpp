// Calls on streams and epoll sets through syscall(): the shim has to see them like those made by
// name. Calls on anything that is not a stream of ours go on to the kernel as they are.
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/event_set.hpp"
#include "preload/fd_table.hpp"
#include "preload/libc_result.hpp"
#include "preload/shim_aio.hpp"
#include "preload/shim_syscall_io.hpp"
#include "preload/unseen_waiting.hpp"

namespace sidestep::preload {
namespace {

/// A call through syscall() is never a cancellation point, but the functions that stand for these
/// calls are.
class NoCancellationPoint {
 public:
  NoCancellationPoint() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellationPoint() { pthread_setcancelstate(before_, nullptr); }
  NoCancellationPoint(const NoCancellationPoint&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

template <typename T>
T* at(long word) {
  return reinterpret_cast<T*>(word);
}
int number_of(long word) {
  return static_cast<int>(word);
}

/// The kernel's calls write back how much of the time is left; libc hides that from programs.
template <typename Wait>
long leaving_the_rest(timespec* timeout, const Wait& wait) {
  const uint64_t start = engine::now_ns();
  timespec limit{};
  const bool is_limited = timeout != nullptr && engine::get_from(timeout, limit);
  const long result = wait();
  const bool was_taken = result >= 0 || errno == EINTR;
  if (!is_limited || !was_taken || (limit.tv_sec == 0 && limit.tv_nsec == 0)) return result;
  const uint64_t waited = engine::now_ns() - start;
  const auto seconds = static_cast<time_t>(waited / 1'000'000'000);
  const auto rest = static_cast<long>(waited % 1'000'000'000);
  timespec left{limit.tv_sec - seconds, limit.tv_nsec - rest};
  if (left.tv_nsec < 0) {
    --left.tv_sec;
    left.tv_nsec += 1'000'000'000;
  }
  // If the time can't be written, nobody is told: it may be a constant.
  if (engine::touch_to_write(timeout, sizeof *timeout) == sizeof *timeout)
    *timeout = left.tv_sec < 0 ? timespec{} : left;
  return result;
}

/// True if a set of signals has the kernel's size.
bool is_of_right_size(const sigset_t* mask, long size) {
  constexpr long kSize = 8;
  return mask == nullptr || size == kSize;
}

/// True if the time limit can be read. The C library reads it before the kernel does, but it is the
/// kernel that would say what is wrong with it.
template <typename Time>
bool can_be_read(const Time* limit) {
  return limit == nullptr || engine::is_readable(limit, sizeof *limit);
}

bool is_stream(long word) {
  return FdTable::peek(number_of(word)) != nullptr;
}

/// Makes the calls on descriptors that are, or may be, streams already.
bool route_stream_call(long number, const long* w, long& result) {
  const int fd = number_of(w[0]);
  switch (number) {
    case SYS_read:
      result = read(fd, at<void>(w[1]), static_cast<size_t>(w[2]));
      return true;
    case SYS_write:
      result = write(fd, at<void>(w[1]), static_cast<size_t>(w[2]));
      return true;
    case SYS_readv:
      result = readv(fd, at<iovec>(w[1]), number_of(w[2]));
      return true;
    case SYS_writev:
      result = writev(fd, at<iovec>(w[1]), number_of(w[2]));
      return true;
    case SYS_preadv2:  // the offset's upper half means nothing where a long has 64 bits
      result = preadv64v2(fd, at<iovec>(w[1]), number_of(w[2]), w[3], number_of(w[5]));
      return true;
    case SYS_pwritev2:
      result = pwritev64v2(fd, at<iovec>(w[1]), number_of(w[2]), w[3], number_of(w[5]));
      return true;
    case SYS_recvfrom:
      result = recvfrom(fd, at<void>(w[1]), static_cast<size_t>(w[2]), number_of(w[3]),
                        at<sockaddr>(w[4]), at<socklen_t>(w[5]));
      return true;
    case SYS_sendto:
      result = sendto(fd, at<void>(w[1]), static_cast<size_t>(w[2]), number_of(w[3]),
                      at<sockaddr>(w[4]), static_cast<socklen_t>(w[5]));
      return true;
    case SYS_recvmsg:
      result = recvmsg(fd, at<msghdr>(w[1]), number_of(w[2]));
      return true;
    case SYS_sendmsg:
      result = sendmsg(fd, at<msghdr>(w[1]), number_of(w[2]));
      return true;
    case SYS_recvmmsg:
      result = recvmmsg(fd, at<mmsghdr>(w[1]), static_cast<unsigned>(w[2]), number_of(w[3]),
                        at<timespec>(w[4]));
      return true;
    case SYS_sendmmsg:
      result = sendmmsg(fd, at<mmsghdr>(w[1]), static_cast<unsigned>(w[2]), number_of(w[3]));
      return true;
    case SYS_shutdown:
      result = shutdown(fd, number_of(w[1]));
      return true;
    case SYS_getsockopt:
      result =
          getsockopt(fd, number_of(w[1]), number_of(w[2]), at<void>(w[3]), at<socklen_t>(w[4]));
      return true;
    case SYS_setsockopt:
      result = setsockopt(fd, number_of(w[1]), number_of(w[2]), at<void>(w[3]),
                          static_cast<socklen_t>(w[4]));
      return true;
    case SYS_ioctl:
      result = ioctl(fd, static_cast<unsigned long>(w[1]), at<void>(w[2]));
      return true;
    default:
      return false;
  }
}

bool route_epoll_call(long number, const long* w, long& result) {
  const int set = number_of(w[0]);
  auto* const events = at<epoll_event>(w[1]);
  const int count = number_of(w[2]);
  auto* const mask = at<sigset_t>(w[4]);
  switch (number) {
#ifdef SYS_epoll_create
    case SYS_epoll_create:
      result = epoll_create(set);
      return true;
#endif
    case SYS_epoll_create1:
      result = epoll_create1(set);
      return true;
    case SYS_epoll_ctl:
      result = epoll_ctl(set, number_of(w[1]), count, at<epoll_event>(w[3]));
      return true;
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
      result = epoll_wait(set, events, count, number_of(w[3]));
      return true;
#endif
    case SYS_epoll_pwait:
      if (!is_of_right_size(mask, w[5])) return false;
      result = epoll_pwait(set, events, count, number_of(w[3]), mask);
      return true;
    case SYS_epoll_pwait2:
      if (!is_of_right_size(mask, w[5])) return false;
      result = epoll_pwait2(set, events, count, at<timespec>(w[3]), mask);
      return true;
    default:
      return false;
  }
}

bool route_poll_call(long number, const long* w, long& result) {
  switch (number) {
#ifdef SYS_poll
    case SYS_poll:
      result = poll(at<pollfd>(w[0]), static_cast<nfds_t>(w[1]), number_of(w[2]));
      return true;
#endif
    case SYS_ppoll: {
      auto* const mask = at<sigset_t>(w[3]);
      auto* const timeout = at<timespec>(w[2]);
      if (!is_of_right_size(mask, w[4]) || !can_be_read(timeout)) return false;
      result = leaving_the_rest(timeout, [&] {
        return ppoll(at<pollfd>(w[0]), static_cast<nfds_t>(w[1]), timeout, mask);
      });
      return true;
    }
#ifdef SYS_select
    case SYS_select:
      if (!can_be_read(at<timeval>(w[4]))) return false;
      result = select(number_of(w[0]), at<fd_set>(w[1]), at<fd_set>(w[2]), at<fd_set>(w[3]),
                      at<timeval>(w[4]));
      return true;
#endif
    case SYS_pselect6: {
      struct Mask {
        const sigset_t* set;
        long size;
      };
      Mask mask{};  // the kernel says what is wrong with a bad one
      if (w[5] != 0 && !engine::get_from(at<const Mask>(w[5]), mask)) return false;
      auto* const timeout = at<timespec>(w[4]);
      if (!is_of_right_size(mask.set, mask.size) || !can_be_read(timeout)) return false;
      result = leaving_the_rest(timeout, [&] {
        return pselect(number_of(w[0]), at<fd_set>(w[1]), at<fd_set>(w[2]), at<fd_set>(w[3]),
                       timeout, mask.set);
      });
      return true;
    }
    default:
      return false;
  }
}

}  // namespace

bool route_io_syscall(long number, const long* words, long& result) {
  switch (number) {
    case SYS_read:
    case SYS_write:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv2:
    case SYS_pwritev2:
    case SYS_recvfrom:
    case SYS_sendto:
    case SYS_recvmsg:
    case SYS_recvmmsg:
    case SYS_shutdown:
    case SYS_getsockopt:
    case SYS_setsockopt:
    case SYS_ioctl: {
      if (!is_stream(words[0])) return false;
      const NoCancellationPoint none;
      return route_stream_call(number, words, result);
    }
    case SYS_sendmsg:
    case SYS_sendmmsg: {  // on any socket: streams may be passed over it
      const NoCancellationPoint none;
      return route_stream_call(number, words, result);
    }
    case SYS_fcntl: {
      // libc has its own idea of some other commands.
      const int command = number_of(words[1]);
      if (command != F_DUPFD && command != F_DUPFD_CLOEXEC && command != F_SETFL) return false;
      result = fcntl(number_of(words[0]), command, words[2]);
      return true;
    }
    case SYS_sendfile:
    case SYS_splice: {
      const bool splices = number == SYS_splice;
      if (!is_stream(words[0]) && !is_stream(words[splices ? 2 : 1])) return false;
      const NoCancellationPoint none;
      result = splices ? splice(number_of(words[0]), at<off64_t>(words[1]), number_of(words[2]),
                                at<off64_t>(words[3]), static_cast<size_t>(words[4]),
                                static_cast<unsigned>(words[5]))
                       : sendfile64(number_of(words[0]), number_of(words[1]), at<off64_t>(words[2]),
                                    static_cast<size_t>(words[3]));
      return true;
    }
    case SYS_connect: {
      const NoCancellationPoint none;
      result =
          connect(number_of(words[0]), at<sockaddr>(words[1]), static_cast<socklen_t>(words[2]));
      return true;
    }
#ifdef SYS_accept
    case SYS_accept: {
      const NoCancellationPoint none;
      result = accept(number_of(words[0]), at<sockaddr>(words[1]), at<socklen_t>(words[2]));
      return true;
    }
#endif
    case SYS_io_uring_setup:
      result = as_libc(engine::sys::call(number, words[0], words[1]));
      if (result >= 0) note_ring();
      return true;
    case SYS_io_submit:
      if (all_leave_for_kernel_aio(at<iocb*>(words[2]), words[1])) return false;
      result = -1;
      return true;
    case SYS_accept4: {
      const NoCancellationPoint none;
      result = accept4(number_of(words[0]), at<sockaddr>(words[1]), at<socklen_t>(words[2]),
                       number_of(words[3]));
      return true;
    }
#ifdef SYS_epoll_create
    case SYS_epoll_create:
    case SYS_epoll_wait:
    case SYS_poll:
    case SYS_select:
#endif
    case SYS_epoll_create1:
    case SYS_epoll_ctl:
    case SYS_epoll_pwait:
    case SYS_epoll_pwait2:
    case SYS_ppoll:
    case SYS_pselect6: {
      const NoCancellationPoint none;
      return route_epoll_call(number, words, result) || route_poll_call(number, words, result);
    }
    default:
      return false;
  }
}

}  // namespace sidestep::preload

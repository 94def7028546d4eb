// Calls on descriptors as such: close, dup, flags.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>

#include "engine/base/held_locks.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/cancellation_point.hpp"
#include "preload/context.hpp"
#include "preload/descriptor.hpp"
#include "preload/event_set_table.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/libc_result.hpp"
#include "preload/open_descriptors.hpp"
#include "preload/real.hpp"
#include "preload/retirement.hpp"
#include "preload/shim_fd.hpp"
#include "preload/tracking.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

/// True if the shim may have something to drop when `fd` is closed, or to share with a duplicate.
bool is_known(int fd) noexcept {
  return FdTable::peek(fd) != nullptr || EventSetTable::is_known(fd);
}

/// Drops whatever the shim knows of `fd`; the caller closes the number itself. Returns true if
/// there was anything to drop.
[[gnu::noinline]] bool forget(int fd) noexcept {
  if (!is_known(fd) || is_vfork_child()) return false;
  const engine::HandlersWait first;
  if (Socket* socket = FdTable::take(fd)) socket->remove_fd(fd);
  EventSetTable::forget(fd);
  return true;
}

/// The descriptor that is about to be duplicated. Its socket is held from before the call, so that
/// another thread that closes `fd` meanwhile does not end what the copy refers to.
class Original {
 public:
  explicit Original(int fd) noexcept : fd_(fd), socket_(fd) {}

  /// True if the copy may have this number. The table has no place for the highest numbers, which
  /// can't be told from foreign ones: the kernel has to serve such a stream alone, and can't if it
  /// does not have all the bytes.
  bool may_be_copied_to(int number) const noexcept {
    return !socket_ || FdTable::can_contain(number) ||
           socket_->hands_over(engine::Reason::high_descriptor);
  }
  /// Called after the kernel has made `copy`, or failed. Returns the result of the call.
  int copied(int copy) const noexcept {
    if (copy < 0 || (!socket_ && !EventSetTable::is_known(fd_))) return copy;
    return is_vfork_child() ? passed_on(copy) : shared(copy);
  }

 private:
  [[gnu::noinline]] int shared(int copy) const noexcept {
    // If the number has changed hands, the kernel knows whether that happened before the call.
    if (socket_ && (FdTable::peek(fd_) == &*socket_ || socket_->is_named_by(copy))) {
      if (!FdTable::can_contain(copy))
        return may_be_copied_to(copy) ? copy
                                      : refuse(copy, EMFILE, "have so high a descriptor number");
      socket_->add_fd();
      FdTable::set(copy, *socket_);
      // stdio is about to use the copy inside libc.
      if (copy <= STDERR_FILENO) socket_->leave_engine(engine::Reason::standard_stream);
    }
    EventSetTable::share(fd_, copy);
    return copy;
  }
  /// The copy is for the program that a child of vfork() is about to become, which knows nothing of
  /// streams.
  [[gnu::noinline]] int passed_on(int copy) const noexcept {
    if (!socket_ || socket_->hands_over(engine::Reason::other_program)) return copy;
    // That program could not read what has already arrived. Better an error than a hole in the
    // stream.
    return refuse(copy, EIO, "be handed to another program");
  }
  static int refuse(int copy, int error, const char* what) noexcept {
    engine::log(engine::LogLevel::error,
                "a stream whose bytes are not all in the kernel cannot %s; dup failed", what);
    sys::close(copy);
    return fail(error);
  }

  const int fd_;
  const SocketRef socket_;
};

int bad_descriptor() noexcept {
  return fail(EBADF);
}

/// Takes a number that the kernel has just given out. Whatever had it before was closed past the
/// library.
int fresh(int fd) noexcept {
  if (fd >= 0) lose_number(fd);
  return fd;
}

/// Checks what the kernel checks before anything else, except for `fd` itself. Returns 0 or an
/// errno.
int fault_of_replacing(int fd, int target, int flags) noexcept {
  if ((flags & ~O_CLOEXEC) != 0 || fd == target) return EINVAL;
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(target) >= limit.rlim_cur
             ? EBADF
             : 0;
}

/// dup2() and dup3() onto a different number. `call` is the call that the program made.
///
/// The shim has to drop what it knows of the target before the kernel closes it: the end mark of
/// the target's stream goes before the anchor's end, and no other thread may take the new file for
/// the stream. But a call that fails must not have touched the target. So everything that can make
/// the call fail is checked first, and a number of ours, which no other thread can close, holds the
/// file.
template <typename Call>
[[gnu::noinline]] int replace(int fd, int target, int flags, Call call) noexcept {
  const engine::HandlersWait first;
  const Original original(fd);
  const int error = fault_of_replacing(fd, target, flags);
  if (error == 0 && !original.may_be_copied_to(target)) return fail(EMFILE);
  if (!is_known(target) || is_vfork_child()) return original.copied(call());
  if (error != 0) return fail(error);
  const int held = engine::private_fd_duplicate(fd);
  if (held == -EBADF) return bad_descriptor();
  forget(target);
  int result = call();
  if (result < 0 && errno == EBADF && held >= 0) {  // another thread has closed `fd` since
    const long once_more = sys::call(SYS_dup3, held, target, flags);
    if (once_more >= 0) result = target;
  }
  const int saved = errno;
  engine::private_fd_close(held);
  errno = saved;
  return original.copied(result);
}

/// Closes a range of descriptors. Returns 0, or an errno if the kernel does not support that here:
/// it is too old, or a filter forbids it. In that case nothing has been touched.
int close_from_to(unsigned first, unsigned last, int flags) noexcept {
  constexpr unsigned kNone = ~0U;
  if (const long error = sys::call(SYS_close_range, kNone, kNone, flags); error < 0)
    return static_cast<int>(-error);
  const engine::HandlersWait handlers_wait;
  const auto for_each = [&](int (*next)(int), auto&& use) {
    const int end = static_cast<int>(std::min<unsigned>(last, FdTable::kSize - 1));
    int fd = first <= static_cast<unsigned>(end) ? next(static_cast<int>(first)) : -1;
    for (; fd >= 0 && fd <= end; fd = next(fd + 1)) use(fd);
  };
  if ((static_cast<unsigned>(flags) & CLOSE_RANGE_CLOEXEC) == 0) {
    for_each(FdTable::next, forget);
    for_each(EventSetTable::next_known, forget);
  }
  // Numbers of ours inside the range are skipped: the program does not know them.
  for_each(engine::next_private_fd, [&](int fd) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first) sys::call(SYS_close_range, first, number - 1, flags);
    first = number + 1;
  });
  if (first <= last) sys::call(SYS_close_range, first, last, flags);
  return 0;
}

[[gnu::noinline]] void leave_for_libc(int fd, engine::Reason reason) noexcept {
  const SocketRef socket(fd);
  if (socket) socket->leave_engine(reason);
}

/// True if the command waits for a lock on a file: that is no business of ours, and the thread may
/// be canceled in it.
bool waits(int command) noexcept {
  return command == F_SETLKW || command == F_OFD_SETLKW;
}

template <typename Real>
[[gnu::noinline]] int control(Real function, int fd, int command, void* argument) noexcept {
  if (is_ours(fd)) return bad_descriptor();
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) {
    const Original original(fd);
    return original.copied(fresh(function(fd, command, argument)));
  }
  SocketRef socket(fd);
  const int result = function(fd, command, argument);
  if (result < 0) return result;
  if (socket && command == F_SETFL) {
    const auto flags = reinterpret_cast<intptr_t>(argument);
    socket->set_nonblocking((flags & O_NONBLOCK) != 0);
    if ((flags & O_ASYNC) != 0) socket->leave_engine(engine::Reason::sigio);
  }
  return result;
}

}  // namespace

void sidestep::preload::forget_descriptor(int fd) noexcept {
  forget(fd);
}

SIDESTEP_EXPORT int close(int fd) {
  resolve_real();
  const DescriptorKind kind = kind_of(fd);
  if (kind == DescriptorKind::ours) return bad_descriptor();
  // Before the stream ends, not after: a thread that is canceled in close() has closed nothing.
  if (kind == DescriptorKind::stream) cancellation_point();
  if (!forget(fd)) return real::close(fd);
  return static_cast<int>(as_libc(sys::close(fd)));
}

SIDESTEP_EXPORT int close_range(unsigned first, unsigned last, int flags) {
  if (first > last ||
      (static_cast<unsigned>(flags) & ~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)) != 0) {
    errno = EINVAL;
    return -1;
  }
  // If nobody shares the table, the kernel has nothing to do for this flag.
  if ((static_cast<unsigned>(flags) & CLOSE_RANGE_UNSHARE) != 0)
    retire_engine(engine::Reason::own_descriptors, Retirement::for_good);
  const int error = close_from_to(first, last, flags);
  return error == 0 ? 0 : static_cast<int>(fail(error));
}

SIDESTEP_EXPORT void closefrom(int first) {
  const int from = std::max(first, 0);
  if (close_from_to(static_cast<unsigned>(from), ~0U, 0) == 0) return;
  // Does what libc does in that case.
  any_open_descriptor([from](int fd) {
    if (fd >= from) close(fd);
    return false;
  });
}

SIDESTEP_EXPORT int dup(int fd) {
  resolve_real();
  if (is_ours(fd)) return bad_descriptor();
  const engine::HandlersWait first;
  const Original original(fd);
  return original.copied(fresh(real::dup(fd)));
}

SIDESTEP_EXPORT int dup2(int fd, int target) {
  resolve_real();
  if (is_ours(target) || is_ours(fd)) return bad_descriptor();
  if (fd == target) return real::dup2(fd, target);
  return replace(fd, target, 0, [=] { return real::dup2(fd, target); });
}

SIDESTEP_EXPORT int dup3(int fd, int target, int flags) {
  resolve_real();
  if (is_ours(target) || is_ours(fd)) return bad_descriptor();
  return replace(fd, target, flags, [=] { return real::dup3(fd, target, flags); });
}

SIDESTEP_EXPORT int fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  resolve_real();
  if (waits(command)) return real::fcntl(fd, command, argument);
  return control(real::fcntl, fd, command, argument);
}

SIDESTEP_EXPORT int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  resolve_real();
  if (waits(command)) return real::fcntl64(fd, command, argument);
  return control(real::fcntl64, fd, command, argument);
}

SIDESTEP_EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  resolve_real();
  SocketRef socket(fd);
  if (socket && request == FIONREAD && !socket->is_native()) {
    int value = 0;
    const int told = socket->queued_bytes(&value);
    if (told != 0 || engine::put_to(static_cast<int*>(argument), value)) return told;
    errno = EFAULT;
    return -1;
  }
  const int result = real::ioctl(fd, request, argument);
  if (socket && result == 0 && (request == FIONBIO || request == FIOASYNC)) {
    const bool on = *static_cast<int*>(argument) != 0;
    if (request == FIONBIO) socket->set_nonblocking(on);
    if (request == FIOASYNC && on) socket->leave_engine(engine::Reason::sigio);
  }
  return result;
}

SIDESTEP_EXPORT FILE* fdopen(int fd, const char* mode) {
  resolve_real();
  {
    // A FILE reads and writes inside libc, where the shim does not see it.
    SocketRef socket(fd);
    if (!socket || socket->hands_over(engine::Reason::fdopen, 1)) return real::fdopen(fd, mode);
  }
  // Some bytes are readable only through the shim: makes a FILE that calls it.
  cookie_io_functions_t calls{};
  calls.read = [](void* cookie, char* data, size_t size) {
    return read(static_cast<int>(reinterpret_cast<intptr_t>(cookie)), data, size);
  };
  calls.write = [](void* cookie, const char* data, size_t size) {
    return write(static_cast<int>(reinterpret_cast<intptr_t>(cookie)), data, size);
  };
  calls.close = [](void* cookie) {
    return close(static_cast<int>(reinterpret_cast<intptr_t>(cookie)));
  };
  FILE* file = fopencookie(reinterpret_cast<void*>(static_cast<intptr_t>(fd)), mode, calls);
  if (file != nullptr) file->_fileno = fd;  // for fileno()
  return file;
}

// These functions write inside libc, where the shim does not see it.

SIDESTEP_EXPORT int vdprintf(int fd, const char* format, va_list arguments) {
  resolve_real();
  leave_for_libc(fd, engine::Reason::dprintf);
  return real::vdprintf(fd, format, arguments);
}

SIDESTEP_EXPORT int dprintf(int fd, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = vdprintf(fd, format, arguments);
  va_end(arguments);
  return result;
}

SIDESTEP_EXPORT int __vdprintf_chk(int fd, int flag, const char* format, va_list arguments) {
  resolve_real();
  leave_for_libc(fd, engine::Reason::dprintf);
  return real::__vdprintf_chk(fd, flag, format, arguments);
}

SIDESTEP_EXPORT int __dprintf_chk(int fd, int flag, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int result = __vdprintf_chk(fd, flag, format, arguments);
  va_end(arguments);
  return result;
}

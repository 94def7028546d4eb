// poll, select and epoll.
#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "engine/private_fd.hpp"
#include "engine/sys.hpp"
#include "preload/context.hpp"
#include "preload/event_set.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/kernel_socket.hpp"
#include "preload/poller.hpp"
#include "preload/real.hpp"

using namespace sidestep::preload;

namespace {

constexpr int64_t kForever = -1;

int64_t nanoseconds(const timespec* time) noexcept {
  if (time == nullptr) return kForever;
  // Longer than a hundred years is for ever.
  if (time->tv_sec > 3'000'000'000) return kForever;
  return static_cast<int64_t>(time->tv_sec) * 1'000'000'000 + time->tv_nsec;
}

bool is_valid(const timespec* time) noexcept {
  return time == nullptr ||
         (time->tv_sec >= 0 && time->tv_nsec >= 0 && time->tv_nsec < 1'000'000'000);
}

/// Sets of any size: programs with more than FD_SETSIZE descriptors allocate longer ones.
bool is_set(int fd, const fd_set* set) noexcept {
  if (set == nullptr) return false;
  return (reinterpret_cast<const unsigned long*>(set)[fd / 64] >> (fd % 64) & 1U) != 0;
}
void put(int fd, fd_set* set) noexcept {
  reinterpret_cast<unsigned long*>(set)[fd / 64] |= 1UL << (fd % 64);
}
void clear(int count, fd_set* set) noexcept {
  if (set != nullptr) std::fill_n(reinterpret_cast<unsigned long*>(set), (count + 63) / 64, 0UL);
}

bool select_has_tracked(int count, const fd_set* a, const fd_set* b, const fd_set* c) noexcept {
  bool tracked = false;
  for (int fd = 0; fd < count; ++fd) {
    const bool is_socket = FdTable::peek(fd) != nullptr;
    const bool concerns = (is_socket || EventSet::may_be_set(fd)) &&
                          (is_set(fd, a) || is_set(fd, b) || is_set(fd, c));
    if (!concerns) continue;
    tracked = tracked || is_socket;
    if (!is_socket) EventSet::watch(fd);
  }
  return tracked;
}

/// select() in terms of poll(), with the event masks that select(2) documents.
int select_mixed(int count, fd_set* reads, fd_set* writes, fd_set* excepts, int64_t timeout,
                 const sigset_t* mask) {
  std::vector<pollfd> fds;
  for (int fd = 0; fd < count; ++fd) {
    short events = 0;
    if (is_set(fd, reads)) events = static_cast<short>(events | POLLIN | POLLRDNORM | POLLRDBAND);
    if (is_set(fd, writes)) events = static_cast<short>(events | POLLOUT | POLLWRNORM | POLLWRBAND);
    if (is_set(fd, excepts)) events = static_cast<short>(events | POLLPRI);
    if (events != 0) fds.push_back({fd, events, 0});
  }
  const int result = poll_mixed(fds.data(), fds.size(), timeout, mask);
  if (result < 0) return -1;
  for (const pollfd& fd : fds) {
    if ((fd.revents & POLLNVAL) != 0) {
      errno = EBADF;
      return -1;
    }
  }
  int bits = 0;
  const auto report = [&](const pollfd& fd, short asked, int ready, fd_set* set) {
    if ((fd.events & asked) == 0 || (fd.revents & ready) == 0) return;
    put(fd.fd, set);
    ++bits;
  };
  clear(count, reads);
  clear(count, writes);
  clear(count, excepts);
  for (const pollfd& fd : fds) {
    report(fd, POLLIN, POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR, reads);
    report(fd, POLLOUT, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR, writes);
    report(fd, POLLPRI, POLLPRI, excepts);
  }
  return bits;
}

int select_guarded(int count, fd_set* reads, fd_set* writes, fd_set* excepts, int64_t timeout,
                   const sigset_t* mask) noexcept {
  const sidestep::engine::HandlersWait first;
  try {
    return select_mixed(count, reads, writes, excepts, timeout, mask);
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return -1;
  }
}

/// epoll_wait() and its kin. `wait_in_kernel` is the call itself, for a set without tracked
/// sockets.
template <typename Wait>
int wait_any(int set, epoll_event* events, int count, int64_t timeout, const sigset_t* mask,
             Wait wait_in_kernel) noexcept {
  {
    const sidestep::engine::HandlersWait first;
    if (const auto known = EventSet::find(set)) return known->wait(events, count, timeout, mask);
  }
  resolve_real();
  const uint64_t start = timeout > 0 ? sidestep::engine::now_ns() : 0;
  // seq_cst: pairs with find_or_make(). Either it sees this thread and wakes it, or this thread
  // finds the set.
  EventSet::strangers.fetch_add(1, std::memory_order_seq_cst);
  {
    const sidestep::engine::HandlersWait first;
    if (const auto made = timeout != 0 ? EventSet::find(set) : nullptr) {
      EventSet::strangers.fetch_sub(1, std::memory_order_relaxed);
      return made->wait(events, count, timeout, mask);
    }
  }
  int found = wait_in_kernel();
  const int error = errno;
  EventSet::strangers.fetch_sub(1, std::memory_order_relaxed);
  errno = error;
  const sidestep::engine::HandlersWait first;
  // The first tracked socket may have been added meanwhile, which has woken this thread.
  const auto known = found > 0 ? EventSet::find(set) : nullptr;
  if (known == nullptr) return found;
  found = known->take_wake_up(events, found);
  known->wake_strangers();  // one at a time
  if (found != 0 || timeout == 0) return found;
  if (timeout > 0) {
    const auto waited = static_cast<int64_t>(sidestep::engine::now_ns() - start);
    timeout = std::max<int64_t>(timeout - waited, 0);
  }
  return known->wait(events, count, timeout, mask);
}

/// What epoll_create() and its kin return.
int created(int epoll_fd) noexcept {
  if (epoll_fd >= 0 && context().active) EventSet::note_created(epoll_fd);
  return epoll_fd;
}

int64_t from_ms(int timeout) noexcept {
  return timeout < 0 ? kForever : static_cast<int64_t>(timeout) * 1'000'000;
}

}  // namespace

SIDESTEP_EXPORT int poll(pollfd* fds, nfds_t count, int timeout) {
  if (!has_tracked(fds, count)) {
    resolve_real();
    return real::poll(fds, count, timeout);
  }
  return poll_mixed(fds, count, from_ms(timeout), nullptr);
}

SIDESTEP_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
                          const sigset_t* mask) {
  if (!has_tracked(fds, count) || !is_valid(timeout)) {
    resolve_real();
    return real::ppoll(fds, count, timeout, mask);
  }
  return poll_mixed(fds, count, nanoseconds(timeout), mask);
}

SIDESTEP_EXPORT int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (count * sizeof(pollfd) > room) {
    resolve_real();
    return real::__poll_chk(fds, count, timeout, room);
  }
  return poll(fds, count, timeout);
}

SIDESTEP_EXPORT int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout,
                                const sigset_t* mask, size_t room) {
  if (count * sizeof(pollfd) > room) {
    resolve_real();
    return real::__ppoll_chk(fds, count, timeout, mask, room);
  }
  return ppoll(fds, count, timeout, mask);
}

SIDESTEP_EXPORT int select(int count, fd_set* reads, fd_set* writes, fd_set* excepts,
                           timeval* timeout) {
  const bool plain = count <= 0 || !select_has_tracked(count, reads, writes, excepts);
  if (plain || (timeout != nullptr && (timeout->tv_sec < 0 || timeout->tv_usec < 0))) {
    resolve_real();
    return real::select(count, reads, writes, excepts, timeout);
  }
  if (timeout == nullptr) return select_guarded(count, reads, writes, excepts, kForever, nullptr);
  const timespec limit{timeout->tv_sec + timeout->tv_usec / 1'000'000,
                       timeout->tv_usec % 1'000'000 * 1000};
  const uint64_t start = sidestep::engine::now_ns();
  const int result = select_guarded(count, reads, writes, excepts, nanoseconds(&limit), nullptr);
  // Linux leaves the time that was not slept.
  const int64_t left = std::max<int64_t>(
      nanoseconds(&limit) - static_cast<int64_t>(sidestep::engine::now_ns() - start), 0);
  *timeout = {static_cast<time_t>(left / 1'000'000'000),
              static_cast<suseconds_t>(left % 1'000'000'000 / 1000)};
  return result;
}

SIDESTEP_EXPORT int pselect(int count, fd_set* reads, fd_set* writes, fd_set* excepts,
                            const timespec* timeout, const sigset_t* mask) {
  if (count <= 0 || !is_valid(timeout) || !select_has_tracked(count, reads, writes, excepts)) {
    resolve_real();
    return real::pselect(count, reads, writes, excepts, timeout, mask);
  }
  return select_guarded(count, reads, writes, excepts, nanoseconds(timeout), mask);
}

SIDESTEP_EXPORT int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  SocketRef socket(fd);
  if (!socket) {
    resolve_real();
    if (sidestep::engine::is_private_fd(fd)) {
      errno = EBADF;
      return -1;
    }
    if (operation == EPOLL_CTL_ADD) EventSet::watch(fd);
    const int result = real::epoll_ctl(set, operation, fd, event);
    const bool may_connect = result == 0 && context().active &&
                             (operation != EPOLL_CTL_ADD || (is_tcp(fd) && !is_listening(fd)));
    if (may_connect) EventSet::note_untracked(set, operation, fd, event);
    return result;
  }
  const auto known = operation == EPOLL_CTL_ADD ? EventSet::find_or_make(set) : EventSet::find(set);
  if (known == nullptr) {
    resolve_real();
    return real::epoll_ctl(set, operation, fd, event);
  }
  const int error = known->control(operation, fd, *socket, event);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

SIDESTEP_EXPORT int epoll_create(int size) {
  resolve_real();
  return created(real::epoll_create(size));
}

SIDESTEP_EXPORT int epoll_create1(int flags) {
  resolve_real();
  return created(real::epoll_create1(flags));
}

SIDESTEP_EXPORT int epoll_wait(int set, epoll_event* events, int count, int timeout) {
  return wait_any(set, events, count, from_ms(timeout), nullptr,
                  [&] { return real::epoll_wait(set, events, count, timeout); });
}

SIDESTEP_EXPORT int epoll_pwait(int set, epoll_event* events, int count, int timeout,
                                const sigset_t* mask) {
  return wait_any(set, events, count, from_ms(timeout), mask,
                  [&] { return real::epoll_pwait(set, events, count, timeout, mask); });
}

SIDESTEP_EXPORT int epoll_pwait2(int set, epoll_event* events, int count, const timespec* timeout,
                                 const sigset_t* mask) {
  const auto in_kernel = [&] { return real::epoll_pwait2(set, events, count, timeout, mask); };
  if (!is_valid(timeout)) {
    resolve_real();
    return in_kernel();
  }
  return wait_any(set, events, count, nanoseconds(timeout), mask, in_kernel);
}

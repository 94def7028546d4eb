// poll, select and epoll.
#include <poll.h>
#include <sys/select.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/cancellation_point.hpp"
#include "preload/context.hpp"
#include "preload/descriptor.hpp"
#include "preload/event_set.hpp"
#include "preload/event_set_table.hpp"
#include "preload/export.hpp"
#include "preload/fd_table.hpp"
#include "preload/kernel_socket.hpp"
#include "preload/poller.hpp"
#include "preload/real.hpp"
#include "preload/selector.hpp"
#include "preload/signals.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

constexpr int64_t kForever = -1;

int64_t nanoseconds(const timespec* time) noexcept {
  if (time == nullptr) return kForever;
  // Anything longer than 95 years is forever.
  if (time->tv_sec > 3'000'000'000) return kForever;
  return static_cast<int64_t>(time->tv_sec) * 1'000'000'000 + time->tv_nsec;
}

/// The kernel says what is wrong with an invalid time.
bool is_valid(const timespec* time) noexcept {
  return time == nullptr || (engine::is_readable(time, sizeof *time) && time->tv_sec >= 0 &&
                             time->tv_nsec >= 0 && time->tv_nsec < 1'000'000'000);
}

bool is_valid(const sigset_t* mask) noexcept {
  return mask == nullptr || engine::is_readable(mask, sizeof(uint64_t));  // the kernel's size
}

[[gnu::noinline]] bool select_has_tracked(int count, const fd_set* a, const fd_set* b,
                                          const fd_set* c) noexcept {
  if (!engine::answers_faults() && !EventSetTable::any()) return false;
  int highest = -1;
  for (int fd = 0; fd < count && fd < FdTable::kSize; ++fd)
    if (kind_to_wait_for(fd) != DescriptorKind::foreign) highest = fd;
  if (highest < 0) return false;
  // The kernel says what is wrong with a bad set.
  const size_t size = (static_cast<size_t>(highest) / 64 + 1) * sizeof(unsigned long);
  for (const fd_set* const set : {a, b, c})
    if (set != nullptr && !engine::is_readable(set, size)) return false;
  bool tracked = false;
  for (int fd = 0; fd <= highest; ++fd) {
    const DescriptorKind kind = kind_to_wait_for(fd);
    const bool concerns =
        kind != DescriptorKind::foreign && (is_set(fd, a) || is_set(fd, b) || is_set(fd, c));
    if (!concerns) continue;
    if (kind == DescriptorKind::stream || EventSetTable::watch(fd)) tracked = true;
  }
  return tracked;
}

/// Makes a call such as poll(), select() or epoll_wait() with tracked sockets. The call begins anew
/// when a handler or the cancellation of a thread comes in between.
template <typename Call>
int begin_anew_while_asked(const Call& call) {
  for (;;) {
    cancellation_point();
    const int result = call();
    if (result >= 0 || errno != kBeginAnew) return result;
  }
}

enum class Where { done, kernel };

[[gnu::noinline]] Where begin_wait(int set, epoll_event* events, int count, int64_t timeout,
                                   const sigset_t* mask, int& found) noexcept {
  const engine::HandlersWait first;
  auto known = EventSetTable::find(set);
  if (known == nullptr) {
    // This thread is counted, so that either find_or_make() sees it and wakes it, or this thread
    // finds the set.
    count_in(EventSetTable::strangers);
    if (timeout != 0) known = EventSetTable::find(set);
    if (known == nullptr) return Where::kernel;
    count_out();
  }
  // As a rule `near` bytes are within one page; if they are there, the rest of the page is, too.
  constexpr size_t kMost = 128;
  const size_t size = static_cast<size_t>(std::max(count, 0)) * sizeof *events;
  const size_t near = std::min(size, kMost * sizeof *events);
  if (is_valid(mask) && engine::is_in_user_space(events, size) &&
      engine::touch_to_write(events, near) == near) [[likely]] {
    found = known->wait(events, count, timeout, mask);
    return Where::done;
  }
  // The kernel notices bad memory when it has something to report.
  epoll_event one{};
  found = is_valid(mask) && engine::is_in_user_space(events, size)
              ? known->wait(&one, 1, timeout, mask)
              : 1;
  if (found > 0) {
    found = -1;
    errno = EFAULT;
  }
  return Where::done;
}

/// Called after the kernel's own call; errno is the kernel's.
[[gnu::noinline]] int end_wait(int set, epoll_event* events, int count, int64_t timeout,
                               uint64_t start, const sigset_t* mask, int found) noexcept {
  const int error = errno;
  count_out();
  errno = error;
  if (found <= 0) return found;
  const engine::HandlersWait first;
  // The first tracked socket may have been added meanwhile; that has woken this thread.
  const auto known = EventSetTable::find(set);
  if (known == nullptr) return found;
  found = known->take_wake_up(events, found);
  known->wake_strangers();  // one at a time
  if (found != 0 || timeout == 0) return found;
  if (timeout > 0) {
    const auto waited = static_cast<int64_t>(engine::now_ns() - start);
    timeout = std::max<int64_t>(timeout - waited, 0);
  }
  return known->wait(events, count, timeout, mask);
}

/// epoll_wait() and its kin. `wait_in_kernel` is the call itself, for a set without tracked
/// sockets.
template <typename Wait>
int wait_any(int set, epoll_event* events, int count, int64_t timeout, const sigset_t* mask,
             const Wait& wait_in_kernel) {
  return begin_anew_while_asked([&] {
    int found = 0;
    const uint64_t start = timeout > 0 ? engine::now_ns() : 0;
    if (begin_wait(set, events, count, timeout, mask, found) == Where::done) return found;
    resolve_real();
    found = wait_in_kernel();
    return end_wait(set, events, count, timeout, start, mask, found);
  });
}

/// What epoll_create() and its kin return.
int created(int epoll_fd) noexcept {
  if (epoll_fd >= 0 && !sidestep::engine::Node::is_barred() && context().active)
    EventSetTable::note_created(epoll_fd);
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
  return begin_anew_while_asked([&] { return poll_mixed(fds, count, from_ms(timeout), nullptr); });
}

SIDESTEP_EXPORT int ppoll(pollfd* fds, nfds_t count, const timespec* timeout,
                          const sigset_t* mask) {
  if (!has_tracked(fds, count) || !is_valid(timeout) || !is_valid(mask)) {
    resolve_real();
    return real::ppoll(fds, count, timeout, mask);
  }
  return begin_anew_while_asked([&] { return poll_mixed(fds, count, nanoseconds(timeout), mask); });
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
  if (plain || (timeout != nullptr && (!engine::is_readable(timeout, sizeof *timeout) ||
                                       timeout->tv_sec < 0 || timeout->tv_usec < 0))) {
    resolve_real();
    return real::select(count, reads, writes, excepts, timeout);
  }
  const auto select_within = [&](int64_t time) {
    return begin_anew_while_asked(
        [&] { return select_mixed(count, reads, writes, excepts, time, nullptr); });
  };
  if (timeout == nullptr) return select_within(kForever);
  const timespec limit{timeout->tv_sec + timeout->tv_usec / 1'000'000,
                       timeout->tv_usec % 1'000'000 * 1000};
  const uint64_t start = engine::now_ns();
  const int result = select_within(nanoseconds(&limit));
  // Linux writes back how much of the time is left.
  const int64_t left =
      std::max<int64_t>(nanoseconds(&limit) - static_cast<int64_t>(engine::now_ns() - start), 0);
  // So does the library, if `timeout` can be written.
  engine::put_to(timeout, timeval{static_cast<time_t>(left / 1'000'000'000),
                                  static_cast<suseconds_t>(left % 1'000'000'000 / 1000)});
  return result;
}

SIDESTEP_EXPORT int pselect(int count, fd_set* reads, fd_set* writes, fd_set* excepts,
                            const timespec* timeout, const sigset_t* mask) {
  if (count <= 0 || !select_has_tracked(count, reads, writes, excepts) || !is_valid(timeout) ||
      !is_valid(mask)) {
    resolve_real();
    return real::pselect(count, reads, writes, excepts, timeout, mask);
  }
  return begin_anew_while_asked(
      [&] { return select_mixed(count, reads, writes, excepts, nanoseconds(timeout), mask); });
}

SIDESTEP_EXPORT int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  const engine::HandlersWait first;
  SocketRef socket(fd);
  if (!socket) {
    resolve_real();
    const DescriptorKind kind = kind_of(fd);
    if (kind == DescriptorKind::ours) {
      errno = EBADF;
      return -1;
    }
    if (kind == DescriptorKind::epoll_set) [[unlikely]] {
      epoll_event copy{};
      const bool is_told = operation != EPOLL_CTL_DEL;
      const int error =
          is_told && !engine::get_from(event, copy)
              ? EFAULT
              : EventSetTable::control_nested(set, operation, fd, is_told ? &copy : event);
      if (error == 0) return 0;
      if (error > 0) errno = error;
      if (error > 0) return -1;
    }
    const int result = real::epoll_ctl(set, operation, fd, event);
    const bool may_connect = result == 0 && !sidestep::engine::Node::is_barred() &&
                             context().active &&
                             (operation != EPOLL_CTL_ADD || (is_tcp(fd) && !is_listening(fd)));
    if (may_connect) EventSetTable::note_untracked(set, operation, fd, event);
    return result;
  }
  epoll_event copy{};
  if (operation != EPOLL_CTL_DEL) {
    if (!engine::get_from(event, copy)) {
      errno = EFAULT;
      return -1;
    }
    event = &copy;
  }
  const auto known =
      operation == EPOLL_CTL_ADD ? EventSetTable::find_or_make(set) : EventSetTable::find(set);
  if (known == nullptr) {
    resolve_real();
    const int result = real::epoll_ctl(set, operation, fd, event);
    // There is no memory or no descriptor for the set, so only the kernel reports on this member,
    // and only the bytes that it has.
    if (result == 0 && operation == EPOLL_CTL_ADD) socket->leave_engine(engine::Reason::no_set);
    return result;
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

// How a thread waits in an epoll set whose members are partly the kernel's and partly the engine's.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>

#include "engine/base/clock.hpp"
#include "engine/node/node.hpp"
#include "engine/progress/wait.hpp"
#include "preload/event_set.hpp"
#include "preload/event_set_member.hpp"
#include "preload/event_set_table.hpp"
#include "preload/fd_table.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

int EventSet::ask_kernel(epoll_event* events, int count, int timeout_ms,
                         const sigset_t* mask) noexcept {
  int found = has_oneshots_.load(std::memory_order_acquire)
                  ? take_oneshots(events, count, timeout_ms, mask)
                  : sys::epoll_pwait(epoll_fd_, events, count, timeout_ms, mask);
  return take_wake_up(events, found);
}

int EventSet::wait_for_doorbells(engine::Parking& parking, epoll_event* events, int count,
                                 int timeout_ms, const sigset_t* mask) noexcept {
  pollfd fds[1 + engine::Parking::kBells] = {{epoll_fd_, POLLIN, 0}};
  const auto bells = parking.bells();
  std::copy(bells.begin(), bells.end(), fds + 1);
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  const int result = sys::ppoll(fds, 1 + bells.size(), timeout_ms < 0 ? nullptr : &limit, mask);
  if (result <= 0) return result;
  // This thread need not be woken by what it dispatches itself.
  const bool alone = sleeping_.load(std::memory_order_relaxed) == 1;
  if (alone) sleeper_.stay_awake();
  parking.answer({fds + 1, bells.size()}, [&] { return has_candidates(); });
  if (alone) {
    sleeper_.prepare();
    // A thread that has gone to sleep meanwhile was not woken, and this thread may be busy with the
    // kernel's events for a while.
    if (has_candidates() && sleeping_.load(std::memory_order_seq_cst) > 1) sleeper_.wake();
  }
  return fds[0].revents != 0 ? ask_kernel(events, count, 0, mask) : 0;
}

int EventSet::take_wake_up(epoll_event* events, int found) noexcept {
  if (found <= 0) return found;
  int kept = 0;
  for (int i = 0; i < found; ++i) {
    void* const what = events[i].data.ptr;  // epoll_event is packed
    if (what == this) {
      sleeper_.finish();
      // This thread looks at the candidates next; any later ones are for another sleeping thread.
      sleeper_.prepare();
    } else if (what != &signal_fd_ &&
               (!has_children_.load(std::memory_order_relaxed) || holds(events[i]))) {
      events[kept++] = events[i];
    }
  }
  return kept;
}

void EventSet::wake_another() noexcept {
  // This thread may have taken the wake-up of more candidates than it reports. A set that is
  // watched shows its candidates.
  if (has_candidates() && sleeping_.load(std::memory_order_seq_cst) != 0 &&
      !watched_.load(std::memory_order_relaxed))
    sleeper_.wake();
}

void EventSet::wake_strangers() noexcept {
  sleeper_.prepare();
  sleeper_.wake();
}

// The kernel is always asked after the engine's members have been collected: whatever was ready
// before a reported member is then reported as well. The kernel's events come first in the list,
// because what is on the kernel is older as a rule.
//
// If more is ready than there is room for, every member gets a turn, as in the kernel's own list:
// once all candidates have been reported, lists begin with the kernel's events until the kernel has
// begun from the front again.
//
// A member that changes sides meanwhile may have been reported by both: see drop_doubles().
int EventSet::take_ready(epoll_event* events, int count, const sigset_t* mask) noexcept {
  if (has_children_.load(std::memory_order_relaxed)) look_over_children(kMostNested);
  const size_t candidates = candidates_.load(std::memory_order_relaxed);
  // acquire, as below: a move either came before what is looked at here, or is seen to have come
  // meanwhile.
  const uint32_t moves = moves_.load(std::memory_order_acquire);
  const auto told = [&](int kernels, int found) {
    const bool doubts = kernels != 0 && moves_.load(std::memory_order_acquire) != moves;
    return doubts ? drop_doubles(events, kernels, kernels + found) : kernels + found;
  };
  if (candidates != 0 && kernels_turn_.load(std::memory_order_relaxed)) {
    const int found = std::max(ask_kernel(events, count, 0, mask), 0);
    if (found == count && !ends_kernels_turn(events, count)) return found;
    kernels_turn_.store(false, std::memory_order_relaxed);
    if (found == count) return found;
    // Collects only candidates that were there before the kernel was asked.
    return told(found, collect(events + found, count - found, candidates));
  }
  const int found = candidates != 0 ? collect(events, count, candidates) : 0;
  if (found < count) {
    const int more = std::max(ask_kernel(events + found, count - found, 0, mask), 0);
    std::rotate(events, events + found, events + found + more);
    given_.store(0, std::memory_order_relaxed);
    return told(more, found);
  }
  const auto new_ones = static_cast<size_t>(found);
  const size_t given = given_.fetch_add(new_ones, std::memory_order_relaxed) + new_ones;
  if (given >= candidates_.load(std::memory_order_relaxed)) {
    given_.store(0, std::memory_order_relaxed);
    kernels_calls_.store(0, std::memory_order_relaxed);
    kernels_turn_.store(true, std::memory_order_relaxed);
  }
  return found;
}

int EventSet::drop_doubles(epoll_event* events, int kernels, int count) noexcept {
  int kept = kernels;
  const std::lock_guard guard(lock_);
  for (int i = kernels; i < count; ++i) {
    const uint64_t data = events[i].data.u64;  // epoll_event is packed
    const bool is_double = std::any_of(
        events, events + kernels, [&](const epoll_event& event) { return event.data.u64 == data; });
    if (!is_double || !tell_again_locked(data)) events[kept++] = events[i];
  }
  return kept;
}

bool EventSet::tell_again_locked(uint64_t data) noexcept {
  for (const auto& [fd, member] : members_)
    if (member->event_.data.u64 == data && (member->event_.events & EPOLLONESHOT) != 0)
      return false;  // it is disarmed, and the kernel has reported another one
  for (const auto& [fd, member] : members_)
    if (member->event_.data.u64 == data && !member->native_) queue(*member, false);
  return true;
}

bool EventSet::ends_kernels_turn(const epoll_event* events, int count) noexcept {
  constexpr unsigned kMostCalls = 64;  // edges may come forever, and none of them twice
  const unsigned calls = kernels_calls_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t first = kernels_first_.load(std::memory_order_relaxed);
  if (calls == 0) kernels_first_.store(events[0].data.u64, std::memory_order_relaxed);
  for (int i = 0; i < count && calls != 0; ++i)
    if (events[i].data.u64 == first) return true;
  return calls >= kMostCalls;
}

bool EventSet::show_late_arrivals() noexcept {
  constexpr size_t kMost = 32;
  std::array<std::optional<SocketRef>, kMost> sockets;
  size_t count = 0;
  {
    const std::lock_guard guard(lock_);
    if (members_.size() <= kMost)
      for (const auto& [fd, member] : members_)
        // An edge-triggered member would get the news twice: the progress thread reports it as
        // well.
        if ((member->event_.events & EPOLLET) == 0) sockets[count++].emplace(*member->socket_);
  }
  bool any = false;
  for (size_t i = 0; i < count; ++i) {
    SocketRef& socket = *sockets[i];
    if (!socket || !socket->has_late_arrivals()) continue;
    socket->stream().signal(engine::kReadable);
    any = true;
  }
  return any;
}

int EventSet::wait(epoll_event* events, int count, int64_t timeout, const sigset_t* mask) noexcept {
  if (count <= 0) {
    errno = EINVAL;
    return -1;
  }
  engine::Node* node = engine::Node::running();  // null in a child that has forked
  const Interruptions interruptions;
  uint64_t start = 0;  // when this thread first looked and found nothing
  int looks = kMostLooks;
  for (bool looked = false;;) {
    const bool engine_carries = node != nullptr && has_engine_members();
    // acquire, as in take_ready().
    const uint32_t moves = moves_.load(std::memory_order_acquire);
    uint32_t seen = EventSetTable::news();
    if (engine_carries) node->progress().poll();
    int found = take_ready(events, count, mask);
    if (found != 0) {
      wake_another();
      return found;
    }
    int64_t left = -1;
    if (timeout >= 0) {
      const uint64_t now = engine::now_ns();
      if (start == 0) start = now;
      left = timeout - static_cast<int64_t>(now - start);
      if (left <= 0) {
        if (node != nullptr && !looked) {
          // Whatever was sent earlier has arrived, but perhaps nobody has looked. A member that is
          // about to leave the kernel's set is not counted as the engine's yet.
          node->progress().drain();
          looked = true;
          if (show_late_arrivals() || has_children_.load(std::memory_order_relaxed)) continue;
        }
        // This thread may have looked for a member that has moved meanwhile where it was no longer,
        // or not yet.
        const bool idle = is_idle();  // takes the lock under which members move
        if (moves_.load(std::memory_order_acquire) != moves && --looks > 0) continue;
        if (idle) return 0;
        // There are candidates: this thread may have taken their wake-up, or another one looks at
        // them.
        if (!has_candidates()) sys::sched_yield();
        continue;
      }
    }
    if (engine::cancellation_is_due()) {
      errno = kBeginAnew;
      return -1;
    }
    if (interruptions.any()) {
      errno = EINTR;
      return -1;
    }
    if (engine_carries) {
      unsigned rounds = 0;
      int kernel = 0;
      const bool ready = engine::spin_until(node->progress(), engine::SpinPeer(), [&] {
        if (has_candidates()) return true;
        const bool nested =
            has_children_.load(std::memory_order_relaxed) && EventSetTable::news() != seen;
        if (nested) seen = EventSetTable::news();
        if (++rounds % 32 == 0 || nested) kernel = ask_kernel(events, count, 0, mask);
        return kernel != 0;
      });
      if (kernel > 0) {
        wake_another();
        return kernel;
      }
      if (ready) continue;
    }
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    sleeper_.prepare();
    {
      std::optional<engine::Parking> parking;
      if (node != nullptr && has_engine_members()) parking.emplace(node->progress(), true);
      const SignalGate gate(mask);
      const engine::CancellableSleep cancellable;
      if (!has_candidates() && !interruptions.any() && !engine::cancellation_is_due()) {
        // Rounded up, as the kernel rounds: the call never returns before the time.
        const int64_t ms = left < 0 ? -1 : (left + 999'999) / 1'000'000;
        const int timeout_ms = static_cast<int>(std::min<int64_t>(ms, INT32_MAX));
        found = parking && !parking->bells().empty()
                    ? wait_for_doorbells(*parking, events, count, timeout_ms, gate.mask())
                    : ask_kernel(events, count, timeout_ms, gate.mask());
      }
    }
    sleeping_.fetch_sub(1, std::memory_order_relaxed);
    if (found > 0) {
      wake_another();
      return found;
    }
    if (found < 0) {
      errno = engine::cancellation_is_due() ? kBeginAnew : -found;
      return -1;
    }
  }
}

}  // namespace sidestep::preload

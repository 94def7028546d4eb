#include "preload/poller.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <span>
#include <vector>

#include "engine/base/user_copy.hpp"
#include "engine/connection/connection.hpp"
#include "engine/node/node.hpp"
#include "engine/progress/wait.hpp"
#include "engine/progress/waiter.hpp"
#include "preload/descriptor.hpp"
#include "preload/event_set.hpp"
#include "preload/event_set_table.hpp"
#include "preload/fd_table.hpp"
#include "preload/signals.hpp"
#include "preload/thread_sleep.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

namespace {

/// A tracked socket among the descriptors.
struct Tracked {
  Tracked(int fd, nfds_t at, engine::Sleeper& sleeper) noexcept
      : index(at), socket(fd), waiter(sleeper) {}
  nfds_t index;
  SocketRef socket;
  engine::Waiter waiter;
  bool native = true;
  uint32_t sequence = 0;
};

uint32_t sequence_of(Socket& socket) noexcept {
  return socket.receiver().sequence() + socket.sender().sequence();
}

timespec to_timespec(int64_t ns) noexcept {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

/// Fills `napped` if the thread waits only to read these streams, and the peer of each wakes it.
/// Returns how many there are, or 0 if one of them can't be napped on. `fds`: what the thread waits
/// for, which is `tracked` and nothing else.
size_t find_wakers(const engine::Progress& progress, const pollfd* fds,
                   std::deque<Tracked>& tracked, std::span<ThreadSleep::Napped> napped) noexcept {
  if (tracked.size() > napped.size()) return 0;
  size_t count = 0;
  for (Tracked& entry : tracked) {
    const bool reads =
        (fds[entry.index].events & ~(POLLIN | POLLRDNORM | POLLRDHUP | POLLPRI)) == 0;
    engine::Endpoint* const waker =
        reads ? engine::waker_of(progress, entry.socket->stream()) : nullptr;
    if (waker == nullptr) return 0;
    napped[count++] = {waker, &entry.socket->stream(), &entry.waiter};
  }
  return count;
}

/// True if `count` is more than the number of descriptors that the process may have. Does not look
/// if there are so few that nobody limits a process to them.
bool is_over_limit(nfds_t count) noexcept {
  constexpr nfds_t kFew = 64;
  rlimit limit{};
  return count > kFew && getrlimit(RLIMIT_NOFILE, &limit) == 0 && count > limit.rlim_cur;
}

}  // namespace

bool has_tracked(const pollfd* fds, nfds_t count) noexcept {
  if (!engine::answers_faults() && !EventSetTable::any()) return false;
  // If the list is bad, the kernel says what is wrong.
  if (count > INT32_MAX / sizeof *fds || is_over_limit(count) ||
      !engine::is_readable(fds, count * sizeof *fds))
    return false;
  bool tracked = false;
  for (nfds_t i = 0; i < count; ++i) {
    const DescriptorKind kind = kind_to_wait_for(fds[i].fd);
    if (kind == DescriptorKind::stream) {
      tracked = true;
    } else if (kind == DescriptorKind::epoll_set) [[unlikely]] {
      if (EventSetTable::watch(fds[i].fd)) tracked = true;
    }
  }
  return tracked;
}

int poll_mixed(pollfd* fds, nfds_t count, int64_t timeout, const sigset_t* mask) noexcept try {
  const engine::HandlersWait first;
  if (engine::touch_to_write(fds, count * sizeof *fds) != count * sizeof *fds) {
    errno = EFAULT;
    return -1;
  }
  engine::Node* node = engine::Node::running();  // null in a child that has forked
  const Interruptions interruptions;
  engine::Sleeper* const sleeper = engine::Sleeper::mine();
  if (sleeper == nullptr) {
    errno = ENOMEM;
    return -1;
  }
  std::deque<Tracked> tracked;
  std::vector<int> sets;  // epoll descriptors among them
  for (nfds_t i = 0; i < count; ++i) {
    const DescriptorKind kind = kind_to_wait_for(fds[i].fd);
    if (kind == DescriptorKind::epoll_set) sets.push_back(fds[i].fd);
    if (kind != DescriptorKind::stream) continue;
    tracked.emplace_back(fds[i].fd, i, *sleeper);
    if (!tracked.back().socket) {
      tracked.pop_back();
    } else {
      tracked.back().socket->stream().clearance().note_waiting();
    }
  }
  // What the kernel is asked: the program's list without the sockets that the engine carries, and
  // with room behind it for what wakes this thread.
  std::vector<pollfd> asked;
  asked.reserve(count + ThreadSleep::kOwnFds);  // in one step
  asked.assign(fds, fds + count);
  for (pollfd& fd : asked) fd.revents = 0;
  asked.resize(count + ThreadSleep::kOwnFds);
  const auto asks_kernel = [&] {
    return std::any_of(asked.begin(), asked.begin() + static_cast<std::ptrdiff_t>(count),
                       [](const pollfd& fd) { return fd.fd >= 0; });
  };
  const uint64_t start = engine::now_ns();
  int looks = EventSet::kMostLooks;
  bool drained = false;  // before this look
  for (bool looked = false;;) {
    int found = 0;
    bool engine_carries = false;
    bool all_ready = true;  // each engine socket, for everything that it is asked for
    engine::SpinPeer peer;
    const uint32_t news = EventSetTable::news();
    for (const int fd : sets) {
      const auto set = EventSetTable::find(fd);
      if (set == nullptr) continue;
      set->look_over();
      engine_carries = engine_carries || set->has_engine_members();
    }
    for (Tracked& entry : tracked) {
      Socket& socket = *entry.socket;
      entry.sequence = sequence_of(socket);
      entry.native = socket.is_native();
      pollfd& slot = asked[entry.index];
      slot.fd = entry.native ? fds[entry.index].fd : -1;
      slot.revents = 0;
      if (entry.native) continue;
      peer = engine_carries ? engine::SpinPeer() : engine::SpinPeer(socket.stream());
      engine_carries = true;
      const uint32_t wanted = static_cast<uint32_t>(fds[entry.index].events) | POLLERR | POLLHUP;
      const uint32_t ready = socket.readiness() & wanted;
      fds[entry.index].revents = static_cast<short>(ready);
      if (ready != 0) ++found;
      const auto asked_for = static_cast<uint32_t>(fds[entry.index].events) & (POLLIN | POLLOUT);
      all_ready = all_ready && (ready & asked_for) == asked_for;
    }
    const auto take_kernel_results = [&](int result) {
      for (nfds_t i = 0; i < count; ++i) {
        if (asked[i].fd < 0 && fds[i].fd >= 0) continue;
        fds[i].revents = asked[i].revents;
        if (result > 0 && asked[i].revents != 0) ++found;
      }
    };
    // If there are only engine sockets, there is nothing to ask the kernel.
    const timespec now{};
    const bool asks = !engine_carries || asks_kernel();
    take_kernel_results(asks ? sys::ppoll(asked.data(), count, &now, nullptr) : 0);
    const auto changed = [&] {
      return (!sets.empty() && EventSetTable::news() != news) ||
             std::any_of(tracked.begin(), tracked.end(), [](Tracked& entry) {
               return sequence_of(*entry.socket) != entry.sequence;
             });
    };
    const auto has_moved = [&] {
      return std::any_of(tracked.begin(), tracked.end(),
                         [](Tracked& entry) { return entry.socket->is_native() != entry.native; });
    };
    if (found != 0 && !sets.empty() && EventSetTable::news() != news && --looks > 0) continue;
    if (found != 0) {
      // As with the kernel, whatever was sent before what was found is there, too.
      if (!all_ready && !drained && node != nullptr) {
        drained = true;
        node->progress().drain();
        if (changed()) continue;
      }
      // The kernel was asked about a socket that it no longer carried, or was not asked about one
      // that it carried.
      if (has_moved() && --looks > 0) continue;
      return found;
    }
    drained = false;
    int64_t left = -1;
    if (timeout >= 0) {
      left = timeout - static_cast<int64_t>(engine::now_ns() - start);
      if (left <= 0) {
        // Whatever was sent earlier has arrived, but perhaps nobody has looked.
        if (looked || node == nullptr) return 0;
        looked = true;
        node->progress().drain();
        const bool arrived = std::any_of(tracked.begin(), tracked.end(), [](Tracked& entry) {
          return entry.socket->has_late_arrivals();
        });
        if (!arrived && !changed()) return 0;
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
    if (engine_carries && node != nullptr && engine::spin_until(node->progress(), peer, changed))
      continue;
    for (Tracked& entry : tracked) entry.socket->stream().watches().add(entry.waiter);
    int result = 0;
    {
      ThreadSleep sleep(*sleeper, mask);
      ThreadSleep::Napped napped[engine::Sleeper::kMostNaps];
      const bool needs_engine = engine_carries && node != nullptr;
      const bool only_engine = needs_engine && mask == nullptr && sets.empty() && !asks_kernel();
      const size_t naps = only_engine ? find_wakers(node->progress(), fds, tracked, napped) : 0;
      if (naps != 0) {
        sleep.nap(node->progress(), {napped, naps});
      } else if (needs_engine) {
        sleep.park(node->progress());
      }
      timespec rest{};
      const auto limit = [&]() -> const timespec* {
        if (timeout < 0) return nullptr;
        left = timeout - static_cast<int64_t>(engine::now_ns() - start);
        rest = to_timespec(std::max<int64_t>(left, 0));
        return &rest;
      };
      result = sleep.sleep(asked, asks_kernel, limit, changed,
                           [&] { return interruptions.any() || engine::cancellation_is_due(); });
    }
    for (Tracked& entry : tracked) entry.socket->stream().watches().remove(entry.waiter);
    if (result < 0) {
      errno = engine::cancellation_is_due() ? kBeginAnew : -result;
      return -1;
    }
    // Sets may turn out to have nothing ready in them, and the engine may have more. For a socket
    // that has begun to move, the kernel reports even fewer bytes than SO_RCVLOWAT
    // (Stream::low_water()).
    if (!sets.empty() || engine_carries || has_moved()) continue;
    if (result > 0) take_kernel_results(result);
    if (found != 0) return found;
  }
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return -1;
}

}  // namespace sidestep::preload

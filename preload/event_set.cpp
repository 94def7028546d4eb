#include "preload/event_set.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>

#include "engine/base/private_fd.hpp"
#include "preload/event_set_member.hpp"
#include "preload/event_set_table.hpp"
#include "preload/fd_table.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

EventSet::EventSet(int epoll_fd) : epoll_fd_(epoll_fd), sleeper_(engine::EventSleeper::take()) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.ptr = this;  // no program can use this value: it is an address of the library's
  usable_ = sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, sleeper_.fd(), &event) >= 0;
}

EventSet::~EventSet() {
  if (signal_fd_ >= 0) engine::private_fd_close(signal_fd_);  // this takes it out of the set
  // The set may live on in another process or under a descriptor that was passed around.
  epoll_event ignored{};
  sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, sleeper_.fd(), &ignored);
  engine::EventSleeper::give_back(sleeper_);
}

// ---- membership

bool EventSet::is_alive(const Member& member) noexcept {
  const std::lock_guard guard(lock_);
  return member.alive_;
}

int EventSet::control(int operation, int fd, Socket& socket, epoll_event* event) noexcept {
  if (operation != EPOLL_CTL_DEL && event == nullptr) return EFAULT;
  std::shared_ptr<Member> member;
  {
    const std::lock_guard guard(lock_);
    if (const auto found = members_.find(fd); found != members_.end()) member = found->second;
  }
  if (member != nullptr && member->socket_ != &socket) {
    // The member belongs to a socket that had the number before and lives on under another one.
    if (operation != EPOLL_CTL_ADD) return ENOENT;
    drop(fd, *member->socket_);
    member = nullptr;
  }
  switch (operation) {
    case EPOLL_CTL_ADD: {
      if (member != nullptr) return EEXIST;
      int result = 0;
      try {
        member = std::make_shared<Member>(*this, fd, socket, *event);
        // The lock is held until the kernel knows the member, too: another thread that finds it,
        // and changes or settles it, has to find it as the kernel has it.
        const std::lock_guard guard(lock_);
        if (is_abandoned_) return EBADF;
        if (!members_.try_emplace(fd, member).second) return EEXIST;  // another thread was first
        index_oneshot(*member, true);
        result = sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, event);
        if (result < 0 && result != -EEXIST) {
          index_oneshot(*member, false);
          members_.erase(fd);
          return -result;
        }
        // Native until the stream says otherwise: settle() looks once the watch is in place.
        member->native_ = true;
      } catch (const std::bad_alloc&) {
        return ENOMEM;
      }
      // relaxed: the flag is set before the members are looked at under the lock. Either this
      // thread sees the flag, or that look finds this member.
      if (must_be_native_.load(std::memory_order_relaxed))
        socket.leave_engine(engine::Reason::unwatchable);
      if (!socket.join_set(shared_from_this(), fd)) {
        drop(fd, socket);
        return ENOMEM;
      }
      socket.stream().watches().add(*member);
      // A thread that has ended the membership meanwhile may have looked for it before all of it
      // was there.
      if (FdTable::peek(fd) != &socket) drop(fd, socket);
      if (!is_alive(*member)) socket.stream().watches().remove(*member);
      socket.stream().clearance().note_waiting();
      settle(*member);
      return result == -EEXIST ? EEXIST : 0;
    }
    case EPOLL_CTL_MOD: {
      if (member == nullptr) return ENOENT;
      if (((member->event_.events | event->events) & EPOLLEXCLUSIVE) != 0) return EINVAL;
      int result = 0;
      {
        const std::lock_guard guard(lock_);
        if (member->event_.data.u64 != event->data.u64 ||
            ((member->event_.events ^ event->events) & EPOLLONESHOT) != 0) {
          index_oneshot(*member, false);
          member->event_ = *event;
          index_oneshot(*member, true);
        }
        member->event_ = *event;
        member->disarmed_ = false;
        if (member->native_) {
          result = sys::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, member->kernel_fd_, event);
        } else {
          queue(*member);
        }
      }
      // Nobody listened to what the stream reported while the member was disarmed.
      settle(*member);
      return -result;
    }
    case EPOLL_CTL_DEL:
      if (member == nullptr) return ENOENT;
      drop(fd, socket);
      return 0;
    default:
      return EINVAL;
  }
}

void EventSet::drop(int fd, const Socket& socket, int closing) noexcept {
  std::shared_ptr<Member> member;
  {
    const std::lock_guard guard(lock_);
    if (const auto found = members_.find(fd);
        found != members_.end() && found->second->socket_ == &socket) {
      member = std::move(found->second);
      members_.erase(found);
      index_oneshot(*member, false);
      member->alive_ = false;
      if (member->native_) {
        // If this number of the socket was closed while another one lived on, it may name something
        // else now. The registration then ends with the last number.
        const int number = member->kernel_fd_;
        epoll_event ignored{};
        if (number == closing || number == socket.anchor() || FdTable::peek(number) == &socket)
          sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, number, &ignored);
      } else {
        count_on_engine_locked(-1);
      }
      unqueue(*member);
      show_candidates_locked();
    }
  }
  if (member != nullptr) member->socket_->stream().watches().remove(*member);
}

void EventSet::release(int fd, const Socket& socket) noexcept {
  std::shared_ptr<Member> member;
  epoll_event event{};
  {
    const std::lock_guard guard(lock_);
    if (const auto found = members_.find(fd);
        found != members_.end() && found->second->socket_ == &socket) {
      member = std::move(found->second);
      members_.erase(found);
      index_oneshot(*member, false);
      member->alive_ = false;
      event = member->event_;
      if (member->disarmed_) event.events &= Member::kModes;
      if (!member->native_) {
        sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
        count_on_engine_locked(-1);
      }
      unqueue(*member);
      show_candidates_locked();
    }
  }
  if (member == nullptr) return;
  member->socket_->stream().watches().remove(*member);
  EventSetTable::note_untracked(epoll_fd_, EPOLL_CTL_ADD, fd, &event);
}

void EventSet::settle(Member& member) noexcept {
  // The stream may move between the look and the lock, and the thread that reports the move may be
  // done before this one.
  for (bool native = member.socket_->is_native();;) {
    {
      const std::lock_guard guard(lock_);
      settle_locked(member, native);
    }
    const bool before = native;
    native = member.socket_->is_native();
    if (native == before) return;
  }
}

void EventSet::settle_locked(Member& member, bool native) noexcept {
  if (!member.alive_ || native == member.native_) return;
  if (native) {
    epoll_event event = member.event_;
    if (member.disarmed_) event.events &= Member::kModes;
    // If the number has been closed, uses another number of the socket.
    const bool named = FdTable::peek(member.fd_) == member.socket_;
    member.kernel_fd_ = named ? member.fd_ : member.socket_->anchor();
    sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, member.kernel_fd_, &event);
    count_on_engine_locked(-1);
    unqueue(member);
    show_candidates_locked();
  } else {
    epoll_event ignored{};
    sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, member.kernel_fd_, &ignored);
    count_on_engine_locked(1);
    queue(member);
  }
  member.native_ = native;
  // release: a thread that finds the member on its new side finds the new count, too.
  moves_.fetch_add(1, std::memory_order_release);
}

bool EventSet::kernel_has(int fd) noexcept {
  // The probe changes nothing for a member. A descriptor that was no member becomes one for a
  // moment. In that moment it can report only an error or a hang-up, and the value of the probe
  // keeps that from the program.
  epoll_event probe{};
  probe.events = EPOLLET | EPOLLONESHOT;
  probe.data.ptr = this;
  const int result = sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &probe);
  if (result == 0) sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, &probe);
  return result == -EEXIST;
}

void EventSet::index_oneshot(Member& member, bool present) noexcept {
  if ((member.event_.events & EPOLLONESHOT) == 0) return;
  const uint64_t data = member.event_.data.u64;  // epoll_event is packed
  const auto [first, last] = oneshots_.equal_range(data);
  const auto known = std::find_if(first, last, [&](const auto& e) { return e.second == &member; });
  if (!present && known != last) oneshots_.erase(known);
  if (!present || known != last) return;
  try {
    oneshots_.emplace(data, &member);
  } catch (const std::bad_alloc&) {
    // The same happens as with data that several members share: see take_oneshots().
  }
  if (!oneshots_.empty()) has_oneshots_.store(true, std::memory_order_release);
}

int EventSet::take_oneshots(epoll_event* events, int count, int timeout_ms,
                            const sigset_t* mask) noexcept {
  if (timeout_ms != 0) {
    pollfd set{epoll_fd_, POLLIN, 0};
    const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    const int result = sys::ppoll(&set, 1, timeout_ms < 0 ? nullptr : &limit, mask);
    if (result <= 0) return result;
  }
  const std::lock_guard guard(lock_);
  const int found = sys::epoll_pwait(epoll_fd_, events, count, 0, nullptr);
  for (int i = 0; i < found; ++i) {
    const uint64_t data = events[i].data.u64;  // epoll_event is packed
    const auto [first, last] = oneshots_.equal_range(data);
    // If a program gives several descriptors the same data, nobody can tell which of them it was:
    // such an event may be reported twice around a move.
    if (first != last && std::next(first) == last && first->second->native_)
      first->second->disarmed_ = true;
  }
  return found;
}

void EventSet::abandon() noexcept {
  // One after the other, and not by a list of them: there may be no memory for that.
  for (;;) {
    std::shared_ptr<Member> member;
    {
      const std::lock_guard guard(lock_);
      is_abandoned_ = true;
      if (members_.empty()) return;
      member = members_.begin()->second;
    }
    {
      const SocketRef socket(*member->socket_);
      if (socket) drop(member->fd_, *member->socket_);
    }
    // A socket that is ending at this moment takes its memberships with it.
    while (is_alive(*member)) sys::sched_yield();
  }
}

void EventSet::leave_set() noexcept {
  epoll_event ignored{};
  sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, sleeper_.fd(), &ignored);
  if (signal_fd_ >= 0) sys::epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, signal_fd_, &ignored);
}

void EventSet::settle_all() noexcept {
  std::vector<std::shared_ptr<Member>> members;
  {
    const engine::GuardUnlessStuck guard(lock_);
    if (!guard) return;
    for (auto& [fd, member] : members_) members.push_back(member);
  }
  for (const auto& member : members) settle(*member);
}

}  // namespace sidestep::preload

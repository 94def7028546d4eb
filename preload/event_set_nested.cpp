// Epoll sets that are watched themselves: by another set, poll() or select().
//
// An eventfd in the kernel's set says that there are candidates. While it is readable, the set is
// readable to its watchers. Like the members in the kernel's own list, candidates may no longer be
// ready. The kernel looks at each such member when it is asked about the set. Here the thread that
// asks does so: a thread that waits in the outer set by our epoll_wait(), or polls, looks the
// candidates over and drops those that are not ready. A thread that watches past the library may be
// told of a set in which nothing is ready, as if another thread had been faster. Once the
// candidates have been collected, it is not told again.
//
// If the outer set takes edges, each new candidate is one: the eventfd is written to each time.
//
// Somebody has to make progress while threads sleep in the outer set. Threads that sleep there by
// the library park as everywhere (has_engine_members()). For threads that the library does not see,
// the devices stay armed, and the progress thread listens: Attendance::count_unseen().
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "engine/base/clock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/node/node.hpp"
#include "preload/event_set.hpp"
#include "preload/event_set_member.hpp"
#include "preload/fd_table.hpp"

namespace sidestep::preload {

namespace sys = engine::sys;

void EventSet::count_on_engine_locked(int change) noexcept {
  on_engine_.fetch_add(change, std::memory_order_relaxed);
  if (watched_.load(std::memory_order_relaxed)) EventSetTable::count_watched_members(change);
  if (!nested_) return;
  if (engine::Node* node = engine::Node::running())
    node->progress().attendance().count_unseen(change);
}

void EventSet::announce_locked() noexcept {
  if (!watched_.load(std::memory_order_relaxed)) return;
  signalled_.store(true, std::memory_order_relaxed);
  // This is written even if the eventfd is readable already: the write is the edge.
  const uint64_t one = 1;
  sys::write(signal_fd_, &one, sizeof one);
  // queue() has changed news() before, for threads that look the set over. This change is for
  // threads that spin: one that sees it finds the set readable.
  EventSetTable::note_news();
}

void EventSet::show_candidates_locked() noexcept {
  if (!watched_.load(std::memory_order_relaxed)) return;
  // Candidates in hand may be put back.
  const bool any = ready_.size() != 0 || in_hand_ != 0;
  if (any == signalled_.load(std::memory_order_relaxed)) return;
  if (any) return announce_locked();
  signalled_.store(false, std::memory_order_relaxed);
  uint64_t count = 0;
  sys::read(signal_fd_, &count, sizeof count);
}

void EventSet::become_watched(bool nested, bool edges) noexcept {
  bool native = false;
  {
    const std::lock_guard guard(lock_);
    if (!watched_.load(std::memory_order_relaxed)) {
      if (signal_fd_ < 0)
        signal_fd_ = engine::private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.ptr = &signal_fd_;
      if (signal_fd_ >= 0 && sys::epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, signal_fd_, &event) == 0) {
        watched_.store(true, std::memory_order_relaxed);
        EventSetTable::count_watched_members(on_engine_.load(std::memory_order_relaxed));
        show_candidates_locked();
      } else {
        must_be_native_.store(true, std::memory_order_relaxed);
        native = true;
      }
    }
    if (nested && !nested_ && watched_.load(std::memory_order_relaxed)) {
      nested_ = true;
      if (engine::Node* node = engine::Node::running())
        node->progress().attendance().count_unseen(on_engine_.load(std::memory_order_relaxed));
    }
    edges_ = edges_ || edges;
  }
  if (native) {
    make_all_native();
  } else {
    settle_all();
  }
}

void EventSet::make_all_native() noexcept {
  std::vector<std::shared_ptr<Member>> members;
  {
    const std::lock_guard guard(lock_);
    for (auto& [fd, member] : members_) members.push_back(member);
  }
  for (const auto& member : members) {
    const SocketRef socket(*member->socket_);
    if (!socket || !is_alive(*member)) continue;
    socket->leave_engine(engine::Reason::unwatchable);
    settle(*member);
  }
}

void EventSet::look_over(int depth) noexcept {
  if (has_candidates() || signalled_.load(std::memory_order_relaxed)) {
    std::unique_lock lock(lock_);
    bool found = false;
    for (int left = kMostLooks; left != 0; --left) {
      for (size_t most = ready_.size(); most != 0 && !found; --most) {
        if (ready_.first() == nullptr) break;
        uint32_t ready = 0;
        const std::shared_ptr<Member> member = look_at_first_locked(ready);
        found = ready != 0;
        if (found && !member->queued_) put_back_first_locked(*member);
        --in_hand_;
      }
      if (found || (in_hand_ == 0 && ready_.size() == 0)) break;
      // A candidate that another thread has in hand shows the set as well, and may be put back.
      // That takes microseconds if the thread has a processor. No thread is waited for beyond the
      // limit: it may be stuck.
      const uint64_t limit = in_hand_ != 0 ? engine::now_ns() + 100'000'000 : 0;
      while (in_hand_ != 0 && ready_.size() == 0 && engine::now_ns() < limit) {
        lock.unlock();
        sys::sched_yield();
        lock.lock();
      }
      if (in_hand_ != 0 && ready_.size() == 0) break;
    }
    show_candidates_locked();
  }
  if (has_children_.load(std::memory_order_acquire)) look_over_children(depth);
}

void EventSet::look_over_children(int depth) noexcept {
  if (depth == 0) return;
  for (size_t i = 0;; ++i) {
    std::shared_ptr<EventSet> child;
    {
      const std::lock_guard guard(lock_);
      if (i >= children_.size()) return;
      child = children_[i].set.lock();
    }
    if (child != nullptr) child->look_over(depth - 1);
  }
}

void EventSet::put_back_first_locked(Member& member) noexcept {
  member.queued_ = true;
  ready_.push_front(member);
  candidates_.store(ready_.size(), std::memory_order_seq_cst);
  // A thread that has gone to sleep meanwhile finds the set readable. If the set is not watched
  // itself, and was looked over because a set that it is in is, that thread has to be woken.
  if (sleeping_.load(std::memory_order_seq_cst) != 0 && !watched_.load(std::memory_order_relaxed))
    sleeper_.wake();
}

bool EventSet::is_of_one_member(uint64_t data) noexcept {
  char path[40];
  std::snprintf(path, sizeof path, "/proc/self/fdinfo/%d", epoll_fd_.load());
  const int file = sys::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  // Each member has a line: "tfd: 5 events: 19 data: 7 pos:0 ...".
  constexpr std::string_view kField = "data:";
  char buffer[2048];
  size_t kept = 0;
  unsigned members = 0;
  for (;;) {
    const long got = sys::read(file, buffer + kept, sizeof buffer - 1 - kept);
    if (got <= 0) break;
    const std::string_view text(buffer, kept + static_cast<size_t>(got));
    const size_t end = text.rfind('\n') + 1;  // 0: none
    for (size_t at = 0; (at = text.find(kField, at)) < end;) {
      at += kField.size();
      buffer[text.size()] = '\0';
      if (std::strtoull(buffer + at, nullptr, 16) == data) ++members;
    }
    kept = text.size() - end;
    if (kept == sizeof buffer - 1) break;  // this is no line of the kernel's
    std::memmove(buffer, buffer + end, kept);
  }
  sys::close(file);
  return members == 1;
}

bool EventSet::holds(const epoll_event& event) noexcept {
  if ((event.events & ~uint32_t{EPOLLIN | EPOLLRDNORM}) != 0) return true;  // no set reports this
  const uint64_t data = event.data.u64;                                     // epoll_event is packed
  const auto find = [&] {
    return std::find_if(children_.begin(), children_.end(),
                        [&](const Child& child) { return child.event.data.u64 == data; });
  };
  std::shared_ptr<EventSet> child;
  {
    const std::lock_guard guard(lock_);
    if (const auto found = find(); found != children_.end()) child = found->set.lock();
  }
  if (child == nullptr) return true;
  pollfd fd{child->epoll_fd_, POLLIN, 0};
  // Looks again if a candidate has come in between.
  uint32_t seen = 0;
  for (int left = kMostLooks; left != 0; --left) {
    seen = EventSetTable::news();
    child->look_over();
    const timespec now{};
    sys::ppoll(&fd, 1, &now, nullptr);
    if (fd.revents == 0 || seen == EventSetTable::news()) break;
  }
  if (fd.revents != 0 || !is_of_one_member(data)) return true;
  // A one-shot event was used up for nothing: arms the member again. Under the lock no other thread
  // changes the membership.
  const std::lock_guard guard(lock_);
  if (const auto again = find();
      again != children_.end() && (again->event.events & EPOLLONESHOT) != 0)
    sys::epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, again->fd, &again->event);
  return false;
}

int EventSet::control_child(int operation, int fd, const std::shared_ptr<EventSet>& child,
                            epoll_event* event) noexcept {
  const std::lock_guard guard(lock_);
  const int result = sys::epoll_ctl(epoll_fd_, operation, fd, event);
  if (result == 0) {
    // Whatever else had the number is no longer a member.
    std::erase_if(children_, [&](const Child& one) { return one.fd == fd || one.set.expired(); });
    try {
      if (operation != EPOLL_CTL_DEL) children_.push_back({fd, child, *event});
    } catch (const std::bad_alloc&) {
      // Nobody will look over the child's candidates before the program is told of the child.
    }
    has_children_.store(!children_.empty(), std::memory_order_release);
  }
  return -result;
}

int EventSetTable::control_nested(int epoll_fd, int operation, int fd,
                                  epoll_event* event) noexcept {
  const auto child = find_or_make(fd);
  const auto parent = child != nullptr ? find_or_make(epoll_fd) : nullptr;
  if (parent == nullptr) return -1;
  if (operation == EPOLL_CTL_ADD || operation == EPOLL_CTL_MOD) {
    if (event == nullptr) return -1;
    child->become_watched(true, (event->events & EPOLLET) != 0);
  }
  return parent->control_child(operation, fd, child, event);
}

}  // namespace sidestep::preload

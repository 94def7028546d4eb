// The members of an epoll set that may be ready, and what is said of them.
#include <mutex>

#include "preload/event_set.hpp"
#include "preload/event_set_member.hpp"
#include "preload/fd_table.hpp"

namespace sidestep::preload {
namespace {
constexpr uint32_t kAlways = EPOLLERR | EPOLLHUP;  // reported without being asked for
}  // namespace

// ---- the list

void EventSet::ReadyList::push_front(Member& member) noexcept {
  member.previous_ready_ = nullptr;
  member.next_ready_ = first_;
  (first_ != nullptr ? first_->previous_ready_ : last_) = &member;
  first_ = &member;
  ++size_;
}

void EventSet::ReadyList::push_back(Member& member) noexcept {
  member.previous_ready_ = last_;
  member.next_ready_ = nullptr;
  (last_ != nullptr ? last_->next_ready_ : first_) = &member;
  last_ = &member;
  ++size_;
}

void EventSet::ReadyList::remove(Member& member) noexcept {
  (member.previous_ready_ != nullptr ? member.previous_ready_->next_ready_ : first_) =
      member.next_ready_;
  (member.next_ready_ != nullptr ? member.next_ready_->previous_ready_ : last_) =
      member.previous_ready_;
  --size_;
}

void EventSet::queue(Member& member, bool news) noexcept {
  if (member.queued_ || member.disarmed_ || !member.alive_) return;
  member.queued_ = true;
  ready_.push_back(member);
  // seq_cst pairs with wait(): either the sleeper sees the candidate, or this thread sees the
  // sleeper.
  candidates_.store(ready_.size(), std::memory_order_seq_cst);
  if (!watched_.load(std::memory_order_relaxed)) {
    if (sleeping_.load(std::memory_order_seq_cst) != 0) sleeper_.wake();
    return;
  }
  // The eventfd that shows the set to others wakes its own sleepers as well. The sleeper's eventfd
  // would show the set until one of them has run.
  EventSetTable::note_news();
  if (news && edges_) announce_locked();
  show_candidates_locked();
}

void EventSet::unqueue(Member& member) noexcept {
  if (!member.queued_) return;
  member.queued_ = false;
  ready_.remove(member);
  candidates_.store(ready_.size(), std::memory_order_relaxed);
}

// ---- what is ready

std::shared_ptr<EventSet::Member> EventSet::look_at_first_locked(uint32_t& ready) noexcept {
  const std::shared_ptr<Member> member = ready_.first()->shared_from_this();
  ++in_hand_;
  unqueue(*member);
  lock_.unlock();
  ready = 0;
  {
    // The socket may have ended since, and its object may be in use for another one. The number
    // says nothing: a membership lasts as long as any descriptor of the socket.
    const SocketRef socket(*member->socket_);
    if (socket) {
      settle(*member);
      if (!socket->is_native()) ready = socket->readiness();
    }
    // The reference ends before the lock is taken again: dropping the last one closes the stream,
    // whose notifications take the lock.
  }
  lock_.lock();
  ready &= (member->event_.events & ~Member::kModes) | kAlways;
  if (!member->alive_ || member->native_ || member->disarmed_) ready = 0;
  return member;
}

int EventSet::collect(epoll_event* events, int count, size_t most) noexcept {
  int found = 0;
  const std::lock_guard guard(lock_);
  // Candidates that are put back have had their turn.
  for (size_t left = std::min(most, ready_.size()); left != 0 && found < count; --left) {
    if (ready_.first() == nullptr) break;  // another thread has it in hand
    uint32_t ready = 0;
    const std::shared_ptr<Member> member = look_at_first_locked(ready);
    if (ready != 0) {
      events[found].events = ready;
      events[found].data = member->event_.data;
      ++found;
      if ((member->event_.events & EPOLLONESHOT) != 0) {
        unqueue(*member);
        member->disarmed_ = true;
      } else if ((member->event_.events & EPOLLET) == 0) {
        queue(*member, false);
      }
    }
    --in_hand_;
  }
  show_candidates_locked();
  return found;
}

bool EventSet::is_idle() noexcept {
  const std::lock_guard guard(lock_);
  return ready_.size() == 0 && in_hand_ == 0;
}

}  // namespace sidestep::preload

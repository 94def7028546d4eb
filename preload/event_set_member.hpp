#pragma once
/// A member of an EventSet that is a tracked socket.
#include <sys/epoll.h>

#include <memory>
#include <mutex>

#include "engine/stream/watch.hpp"
#include "preload/event_set.hpp"
#include "preload/socket.hpp"

namespace sidestep::preload {

/// One socket in one set. Holds no reference to the socket: as in the kernel, the membership ends
/// with the socket.
class EventSet::Member final : public engine::Watch, public std::enable_shared_from_this<Member> {
 public:
  /// The events of a member that say how to report and not what.
  static constexpr uint32_t kModes = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;

  Member(EventSet& set, int fd, Socket& socket, const epoll_event& event) noexcept
      : set_(set), fd_(fd), socket_(&socket), event_(event) {}

  void on_event(engine::Stream&, uint32_t events) noexcept override {
    // The kernel must know of a watched set's candidates even if nobody collects them. relaxed: a
    // set that becomes watched at this moment looks after its members itself.
    const bool watched = set_.watched_.load(std::memory_order_relaxed);
    const bool native = watched && socket_->is_native();
    const std::lock_guard guard(set_.lock_);
    if (watched) set_.settle_locked(*this, native);
    // As in the kernel, room to send wakes only those who wait for it: with EPOLLET, others would
    // take what was there before for news.
    const bool concerns = events != engine::kWritable ||
                          (event_.events & (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)) != 0;
    if (alive_ && concerns && !(watched && native_)) {
      if (queued_ && set_.edges_) set_.announce_locked();
      set_.queue(*this);
    }
  }

  EventSet& set_;
  const int fd_;
  Socket* const socket_;
  // Under the set's lock:
  int kernel_fd_ = fd_;  // the number that it is registered by in the kernel's set
  epoll_event event_;
  bool native_ = false;  // registered in the kernel's set
  bool queued_ = false;  // in the set's ReadyList, linked by the next two
  Member* next_ready_ = nullptr;
  Member* previous_ready_ = nullptr;
  bool disarmed_ = false;  // EPOLLONESHOT has fired
  bool alive_ = true;
};

}  // namespace sidestep::preload

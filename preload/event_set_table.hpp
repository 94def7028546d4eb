#pragma once
/// Which epoll sets there are, and which descriptors name them; and what threads that watch sets
/// have to know of all of them together.
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace sidestep::preload {

class EventSet;
class Socket;

class EventSetTable {
 public:
  /// Returns the set behind an epoll descriptor, if tracked sockets were ever added to it.
  static std::shared_ptr<EventSet> find(int epoll_fd) noexcept;
  /// Returns the same, and makes the set if need be. Null if memory or descriptors are exhausted,
  /// or if the descriptor names no set.
  static std::shared_ptr<EventSet> find_or_make(int epoll_fd) noexcept;
  /// False if forget() and share() have nothing to do for the descriptor.
  static bool is_known(int fd) noexcept;
  /// Notes a descriptor that epoll_create() has made, so that its duplicates are known to name the
  /// same set.
  static void note_created(int epoll_fd) noexcept;
  /// Called when `fd` is closed: as a set, as a socket that is not tracked, and as a member of sets
  /// that was its socket's last descriptor.
  static void forget(int fd) noexcept;
  static void share(int fd, int copy) noexcept;
  /// Puts members whose streams have come down back into the kernel's sets.
  static void before_fork() noexcept;
  static void after_fork_in_child() noexcept;
  /// Called when the engine has ended: all members are the kernel's, and its sets go on alone.
  static void leave_to_kernel() noexcept;
  /// Returns the smallest number not below `fd` that forget() has to be called for, or negative.
  static int next_known(int fd) noexcept;
  /// True if an epoll descriptor has this number; one load.
  static bool may_be_set(int fd) noexcept;
  /// True if there is any epoll descriptor.
  static bool any() noexcept;

  /// How many threads sleep in the kernel's epoll_wait() on sets that have no EventSet yet.
  static std::atomic<int> strangers;

  // --- sets that are watched themselves: event_set_nested.cpp ---

  /// Called when poll() or select() is about to watch `epoll_fd`. False: it is no epoll descriptor.
  static bool watch(int epoll_fd) noexcept;
  /// epoll_ctl() with an epoll descriptor as the member; 0 or errno. Negative: only the kernel is
  /// concerned.
  static int control_nested(int epoll_fd, int operation, int fd, epoll_event* event) noexcept;
  /// A number that changes when a watched set may have become readable. Read it before
  /// EventSet::look_over(). seq_cst, here and in note_news(): a thread that has read the old number
  /// looks at the candidates after that, and finds those that note_news() tells of.
  static uint32_t news() noexcept { return news_.load(std::memory_order_seq_cst); }
  static void note_news() noexcept { news_.fetch_add(1, std::memory_order_seq_cst); }
  /// Counts the members of watched sets that are on the engine. relaxed, here and below: like the
  /// count of each set, it orders nothing.
  static void count_watched_members(int change) noexcept {
    watched_members_.fetch_add(change, std::memory_order_relaxed);
  }
  static bool has_watched_members() noexcept {
    return watched_members_.load(std::memory_order_relaxed) != 0;
  }

  // --- TCP sockets that are put into sets before they are connected ---

  /// Called when the kernel has done `operation` to a socket that is not tracked. Remembers it
  /// until the socket is tracked.
  static void note_untracked(int epoll_fd, int operation, int fd,
                             const epoll_event* event) noexcept;
  /// Called when `fd` is tracked from now on: its memberships become those of the socket.
  static void adopt(int fd, Socket& socket) noexcept;

 private:
  static std::atomic<uint32_t> news_;
  static std::atomic<int> watched_members_;
};

}  // namespace sidestep::preload

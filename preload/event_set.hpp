#pragma once
/// An epoll set that contains tracked sockets.
///
/// The kernel's set stays the program's set: everything the shim does not carry is registered and
/// reported there as ever. A tracked socket is registered in the kernel ("native") as long as the
/// kernel's readiness is the truth, and is taken out when its stream is bound; from then on the set
/// keeps it in a list of sockets that may be ready, fed by the stream's notifications. A thread
/// that sleeps sleeps in the kernel's epoll_wait; an eventfd of the set, registered there too,
/// wakes it.
///
/// EPOLLONESHOT: that an event was reported must be known when the stream moves, whoever reported
/// it. Sets with such members therefore take the kernel's events under their lock, and sleep in
/// ppoll(2) on the epoll descriptor.
///
/// Locks: a notification holds the stream's watch lock and takes the set's; no thread takes a
/// stream's lock or adds and removes watches while it holds a set's.
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/lock.hpp"
#include "engine/waiter.hpp"

namespace sidestep::preload {

class Socket;

class EventSet : public std::enable_shared_from_this<EventSet> {
 public:
  /// The set behind an epoll descriptor, if tracked sockets were ever added to it.
  static std::shared_ptr<EventSet> find(int epoll_fd) noexcept;
  /// The same; made if need be. Null when memory or descriptors are exhausted.
  static std::shared_ptr<EventSet> find_or_make(int epoll_fd) noexcept;
  static bool is_known(int epoll_fd) noexcept { return find(epoll_fd) != nullptr; }
  /// `fd` is closed: as a set, and as a member of sets that was its socket's last descriptor.
  static void forget(int fd) noexcept;
  static void share(int fd, int copy) noexcept;
  /// Puts members whose streams have come down back into the kernel's sets.
  static void before_fork() noexcept;
  static void after_fork_in_child() noexcept;

  explicit EventSet(int epoll_fd) noexcept;
  ~EventSet();

  /// epoll_ctl() on a tracked socket; 0 or errno.
  int control(int operation, int fd, Socket& socket, epoll_event* event) noexcept;
  /// epoll_wait(); `timeout` in nanoseconds, negative: for ever. The result, or -1 with errno.
  int wait(epoll_event* events, int count, int64_t timeout, const sigset_t* mask) noexcept;
  /// Members of a socket that has ended.
  void drop(int fd, const Socket& socket) noexcept;

 private:
  class Member;

  int collect(epoll_event* events, int count) noexcept;
  int ask_kernel(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  int take_oneshots(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  void index_oneshot(Member& member, bool present) noexcept;
  void queue(Member& member) noexcept;
  bool has_candidates() const noexcept { return candidates_.load(std::memory_order_seq_cst) != 0; }
  void settle(Member& member) noexcept;
  bool is_alive(const Member& member) noexcept;

  const int epoll_fd_;
  engine::Sleeper& sleeper_;
  engine::Mutex lock_;
  std::unordered_map<int, std::shared_ptr<Member>> members_;
  std::vector<std::shared_ptr<Member>> ready_;
  std::unordered_multimap<uint64_t, Member*> oneshots_;  // by the program's data
  std::atomic<bool> has_oneshots_{false};
  std::atomic<size_t> candidates_{0};
  std::atomic<int> on_engine_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<unsigned> calls_{0};
};

}  // namespace sidestep::preload

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
/// A set that is itself a member of a set, or polled, has to be readable for the kernel when one of
/// its members is: such members leave the engine for good.
///
/// Locks: a notification holds the stream's watch lock and takes the set's; no thread takes a
/// stream's lock or adds and removes watches while it holds a set's.
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "engine/lock.hpp"
#include "engine/waiter.hpp"

namespace sidestep::engine {
class Parking;
}

namespace sidestep::preload {

class Socket;

class EventSet : public std::enable_shared_from_this<EventSet> {
 public:
  /// The set behind an epoll descriptor, if tracked sockets were ever added to it.
  static std::shared_ptr<EventSet> find(int epoll_fd) noexcept;
  /// The same; made if need be. Null when memory or descriptors are exhausted, and for what is no
  /// set.
  static std::shared_ptr<EventSet> find_or_make(int epoll_fd) noexcept;
  /// Whether the descriptor is known to be one of epoll's.
  static bool is_known(int epoll_fd) noexcept;
  /// epoll_create() has made it. So duplicates are known to be the same set.
  static void note_created(int epoll_fd) noexcept;
  /// `fd` is closed: as a set, as a socket that is not tracked, and as a member of sets that was
  /// its socket's last descriptor.
  static void forget(int fd) noexcept;
  static void share(int fd, int copy) noexcept;
  /// Puts members whose streams have come down back into the kernel's sets.
  static void before_fork() noexcept;
  static void after_fork_in_child() noexcept;

  /// Threads that sleep in the kernel's epoll_wait() of sets that are none of these yet.
  static std::atomic<int> strangers;

  explicit EventSet(int epoll_fd) noexcept;
  ~EventSet();

  /// epoll_ctl() on a tracked socket; 0 or errno.
  int control(int operation, int fd, Socket& socket, epoll_event* event) noexcept;
  /// epoll_wait(); `timeout` in nanoseconds, negative: for ever. The result, or -1 with errno.
  int wait(epoll_event* events, int count, int64_t timeout, const sigset_t* mask) noexcept;
  /// Of the kernel's events for a thread that slept there before the set was made: takes the set's
  /// own out, and returns how many are left.
  int take_wake_up(epoll_event* events, int found) noexcept;
  void wake_strangers() noexcept;
  /// `epoll_fd` is about to be watched: by another set, by poll() or select(). Nothing happens if
  /// it is no epoll descriptor.
  static void watch(int epoll_fd) noexcept;
  /// The smallest number that is not below `fd` and forget() is for, or negative.
  static int next_known(int fd) noexcept;
  /// Whether any epoll descriptor has this number; one load.
  static bool may_be_set(int fd) noexcept;

  // --- TCP sockets that are put into sets before they are connected ---

  /// The kernel has done it to a socket that is not tracked: it is remembered until the socket is.
  static void note_untracked(int epoll_fd, int operation, int fd,
                             const epoll_event* event) noexcept;
  /// `fd` is tracked now: its memberships are.
  static void adopt(int fd, Socket& socket) noexcept;
  /// The opposite of adopt(): `fd` of this socket is no stream any more, but still a member.
  void release(int fd, const Socket& socket) noexcept;
  /// The membership ends. `closing`: a number that the socket has lost, but not given back yet.
  void drop(int fd, const Socket& socket, int closing = -1) noexcept;

 private:
  class Member;

  /// Members that may be ready, the one that has waited longest first, as in the kernel's list.
  /// Made of the members themselves: to take one costs the same however many there are.
  class ReadyList {
   public:
    void push_back(Member& member) noexcept;
    void remove(Member& member) noexcept;
    Member* first() const noexcept { return first_; }
    size_t size() const noexcept { return size_; }

   private:
    Member* first_ = nullptr;
    Member* last_ = nullptr;
    size_t size_ = 0;
  };

  /// What is ready now, of the kernel's members and of the engine's.
  int take_ready(epoll_event* events, int count, const sigset_t* mask) noexcept;
  /// After a list that is full of the kernel's events.
  bool ends_kernels_turn(const epoll_event* events, int count) noexcept;
  /// The engine's part: at most `most` candidates are looked at.
  int collect(epoll_event* events, int count, size_t most) noexcept;
  /// Whether the kernel's set has the file that `fd` names, as that number.
  bool kernel_has(int fd) noexcept;
  int ask_kernel(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  /// The same, by the thread that waits for the doorbells as well. 0 also when one has rung.
  int lead(engine::Parking& parking, epoll_event* events, int count, int timeout_ms,
           const sigset_t* mask) noexcept;
  int take_oneshots(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  void index_oneshot(Member& member, bool present) noexcept;
  void queue(Member& member) noexcept;
  void unqueue(Member& member) noexcept;
  /// Nothing waits to be collected, and no thread has something that it may put back.
  bool is_idle() noexcept;
  bool has_candidates() const noexcept { return candidates_.load(std::memory_order_seq_cst) != 0; }
  /// Registers the member where its stream is now: in the kernel's set, or not.
  void settle(Member& member) noexcept;
  void settle_locked(Member& member, bool native) noexcept;
  void settle_all() noexcept;
  /// From now on the kernel's set tells the truth about itself: members leave the engine, and while
  /// one of them has not left yet and may be ready, an eventfd among the members says so.
  void become_watched() noexcept;
  void show_candidates_locked() noexcept;
  /// Its last descriptor is gone.
  void abandon() noexcept;
  bool is_alive(const Member& member) noexcept;

  const int epoll_fd_;
  engine::EventSleeper& sleeper_;
  bool usable_ = false;  // it is an epoll descriptor, and there was one for the sleeper
  engine::Mutex lock_;
  std::unordered_map<int, std::shared_ptr<Member>> members_;
  ReadyList ready_;
  std::unordered_multimap<uint64_t, Member*> oneshots_;  // by the program's data
  std::atomic<bool> has_oneshots_{false};
  std::atomic<size_t> candidates_{0};
  std::atomic<int> on_engine_{0};
  std::atomic<int> sleeping_{0};
  int in_hand_ = 0;  // candidates that a thread has taken out and looks at; under lock_
  // Where more is ready than a program has room for: take_ready(). Two threads at once may mix up
  // whose turn it is, no more.
  std::atomic<size_t> given_{0};
  std::atomic<bool> kernels_turn_{false};
  std::atomic<unsigned> kernels_calls_{0};
  std::atomic<uint64_t> kernels_first_{0};
  // Of a set that is watched itself; under lock_ but for the flag:
  std::atomic<bool> watched_{false};
  int signal_fd_ = -1;
  bool signalled_ = false;
};

}  // namespace sidestep::preload

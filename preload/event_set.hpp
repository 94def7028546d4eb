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
/// A set that is itself a member of a set, or polled, is readable for the kernel when one of its
/// members is: an eventfd among them says whether it has candidates. Candidates may turn out not to
/// be ready, so whoever is told of such a set looks them over before the program hears of it:
/// event_set_nested.cpp.
///
/// Locks: a notification holds the stream's watch lock and takes the set's; no thread takes a
/// stream's lock or another set's, or adds and removes watches, while it holds a set's.
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/base/lock.hpp"
#include "engine/progress/waiter.hpp"

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
  /// The engine has ended: all members are the kernel's, and the kernel's sets go on alone.
  static void leave_to_kernel() noexcept;

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
  /// `epoll_fd` is about to be watched by poll() or select(). False: it is no epoll descriptor.
  static bool watch(int epoll_fd) noexcept;
  /// epoll_ctl() on an epoll descriptor; 0 or errno, or negative: it is the kernel's business
  /// alone.
  static int control_nested(int epoll_fd, int operation, int fd, epoll_event* event) noexcept;
  /// Changes when a watched set may have become readable. Taken before look_over().
  static uint32_t news() noexcept { return news_.load(std::memory_order_seq_cst); }
  /// How often a set is looked over in which candidates keep coming, before it is called ready.
  static constexpr int kMostLooks = 64;
  /// Drops candidates that are not ready, of the sets in this set as well: then the kernel's answer
  /// for the descriptor is right.
  void look_over(int depth = kMostNested) noexcept;
  void look_over_children(int depth) noexcept;
  /// The engine has members of this set, or of one that is in it, to be polled for.
  bool has_engine_members() const noexcept {
    return on_engine_.load(std::memory_order_relaxed) != 0 ||
           (has_children_.load(std::memory_order_relaxed) &&
            watched_members_.load(std::memory_order_relaxed) != 0);
  }
  /// The smallest number that is not below `fd` and forget() is for, or negative.
  static int next_known(int fd) noexcept;
  /// Whether any epoll descriptor has this number; one load.
  static bool may_be_set(int fd) noexcept;
  /// Whether there is any.
  static bool any() noexcept;

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
    void push_front(Member& member) noexcept;
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
  /// Where members have changed sides while a list was made: nobody is told of twice in it, as in
  /// the kernel's. A program that reads once for each event would wait for ever, and one that
  /// closes be told of what is gone. What the engine's part tells of again is put off until the
  /// next list. Returns how many events are left; `kernels`: the first ones.
  int drop_doubles(epoll_event* events, int kernels, int count) noexcept;
  /// Members with this data, of which nobody may know which was told of. False: it can't be.
  bool tell_again_locked(uint64_t data) noexcept;
  /// After a list that is full of the kernel's events.
  bool ends_kernels_turn(const epoll_event* events, int count) noexcept;
  /// The engine's part: at most `most` candidates are looked at.
  int collect(epoll_event* events, int count, size_t most) noexcept;
  /// Takes the first candidate in hand, and what it is ready for; in_hand_ counts it until the
  /// caller has put it back, or not. Under lock_, which it gives up meanwhile.
  std::shared_ptr<Member> look_at_first_locked(uint32_t& ready) noexcept;
  /// Whether the kernel's set has the file that `fd` names, as that number.
  bool kernel_has(int fd) noexcept;
  int ask_kernel(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  /// The same, by the thread that waits for the doorbells as well. 0 also when one has rung.
  int lead(engine::Parking& parking, epoll_event* events, int count, int timeout_ms,
           const sigset_t* mask) noexcept;
  int take_oneshots(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  void index_oneshot(Member& member, bool present) noexcept;
  /// `news`: not only put back behind the others.
  void queue(Member& member, bool news = true) noexcept;
  void unqueue(Member& member) noexcept;
  /// Of a small set: Socket::has_late_arrivals() of its members, which are candidates then.
  bool show_late_arrivals() noexcept;
  /// Nothing waits to be collected, and no thread has something that it may put back.
  bool is_idle() noexcept;
  /// Before a thread returns with events: candidates may be left, and another one sleep.
  void wake_another() noexcept;
  bool has_candidates() const noexcept { return candidates_.load(std::memory_order_seq_cst) != 0; }
  /// Registers the member where its stream is now: in the kernel's set, or not.
  void settle(Member& member) noexcept;
  void settle_locked(Member& member, bool native) noexcept;
  void settle_all() noexcept;
  /// From now on the kernel's set is readable while there are candidates. `nested`: also to threads
  /// that sleep in another set, where the library may not see them. `edges`: and to which each
  /// candidate is news. Where there is no descriptor for it, the members leave the engine for good.
  void become_watched(bool nested, bool edges) noexcept;
  void show_candidates_locked() noexcept;
  void announce_locked() noexcept;
  void put_back_first_locked(Member& member) noexcept;
  void make_all_native() noexcept;
  void count_on_engine_locked(int change) noexcept;
  int control_child(int operation, int fd, const std::shared_ptr<EventSet>& child,
                    epoll_event* event) noexcept;
  /// Whether the kernel's event of a set that is a member is still right when the candidates there
  /// have been looked over.
  bool holds(const epoll_event& event) noexcept;
  /// No two members of the kernel's set have this data.
  bool is_of_one_member(uint64_t data) noexcept;
  /// Its last descriptor is gone.
  void abandon() noexcept;
  /// What wakes threads that wait for the engine's members is a member no more.
  void leave_set() noexcept;
  bool is_alive(const Member& member) noexcept;

  static constexpr int kMostNested = 5;  // the kernel's own limit
  static std::atomic<uint32_t> news_;
  static std::atomic<int> watched_members_;  // of watched sets, on the engine

  std::atomic<int> epoll_fd_;  // another number of the set when this one is closed
  engine::EventSleeper& sleeper_;
  bool usable_ = false;  // it is an epoll descriptor, and there was one for the sleeper
  engine::Mutex lock_;
  std::unordered_map<int, std::shared_ptr<Member>> members_;
  bool is_abandoned_ = false;  // nothing becomes a member any more
  ReadyList ready_;
  std::unordered_multimap<uint64_t, Member*> oneshots_;  // by the program's data
  std::atomic<bool> has_oneshots_{false};
  std::atomic<size_t> candidates_{0};
  std::atomic<int> on_engine_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<uint32_t> moves_{0};  // of members, to or from the kernel's set; written under lock_
  int in_hand_ = 0;  // candidates that a thread has taken out and looks at; under lock_
  // Where more is ready than a program has room for: take_ready(). Two threads at once may mix up
  // whose turn it is, no more.
  std::atomic<size_t> given_{0};
  std::atomic<bool> kernels_turn_{false};
  std::atomic<unsigned> kernels_calls_{0};
  std::atomic<uint64_t> kernels_first_{0};
  // Of a set that is watched itself; written under lock_:
  std::atomic<bool> watched_{false};
  std::atomic<bool> must_be_native_{false};  // it should be watched, and can't
  bool nested_ = false;
  bool edges_ = false;
  std::atomic<bool> signalled_{false};
  int signal_fd_ = -1;
  // Of one with sets in it; under lock_ but for the flag:
  struct Child {
    int fd;
    std::weak_ptr<EventSet> set;
    epoll_event event;
  };
  std::vector<Child> children_;
  std::atomic<bool> has_children_{false};
};

}  // namespace sidestep::preload

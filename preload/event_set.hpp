#pragma once
/// An epoll set that contains tracked sockets.
///
/// The kernel's set stays the program's set: everything the shim does not carry is registered and
/// reported there as ever. A tracked socket is registered in the kernel ("native") as long as the
/// kernel's readiness is the truth, and is taken out when its stream is bound. From then on the set
/// keeps the socket in a list of sockets that may be ready, which the stream's notifications feed.
/// Threads sleep in the kernel's epoll_wait; an eventfd of the set, registered there too, wakes
/// them.
///
/// EPOLLONESHOT: when the stream moves, the set must know whether an event was reported, whoever
/// reported it. Sets with such members therefore take the kernel's events under their lock, and
/// sleep in ppoll(2) on the epoll descriptor.
///
/// A set that is polled, or a member of another set, is readable to the kernel when one of its
/// members is: an eventfd among them says whether the set has candidates. Candidates may turn out
/// not to be ready, so a thread that is told of such a set looks them over before the program hears
/// of it: event_set_nested.cpp.
///
/// Locks: a notification holds the stream's watch lock and takes the set's. While a thread holds a
/// set's lock, it takes no stream's lock and no other set's, and adds and removes no watches.
#include <sys/epoll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/base/lock.hpp"
#include "engine/progress/waiter.hpp"
#include "preload/event_set_table.hpp"

namespace sidestep::engine {
class Parking;
}

namespace sidestep::preload {

class Socket;

class EventSet : public std::enable_shared_from_this<EventSet> {
 public:
  /// Throws std::bad_alloc if there is no memory.
  explicit EventSet(int epoll_fd);
  ~EventSet();

  /// epoll_ctl() on a tracked socket; 0 or errno.
  int control(int operation, int fd, Socket& socket, epoll_event* event) noexcept;
  /// epoll_wait(); `timeout` in nanoseconds, negative: forever. Returns the result, or -1 with
  /// errno.
  int wait(epoll_event* events, int count, int64_t timeout, const sigset_t* mask) noexcept;
  /// Takes the set's own events out of those that the kernel has reported, also to a thread that
  /// slept there before the set was made. Returns how many are left.
  int take_wake_up(epoll_event* events, int found) noexcept;
  void wake_strangers() noexcept;
  /// How often a set in which candidates keep coming is looked over before it is called ready.
  static constexpr int kMostLooks = 64;
  /// Drops candidates that are not ready, also those of the sets in this set. Then the kernel's
  /// answer for the descriptor is right.
  void look_over(int depth = kMostNested) noexcept;
  void look_over_children(int depth) noexcept;
  /// True if the engine carries members of this set, or of a set in it, which must be polled for.
  bool has_engine_members() const noexcept {
    return on_engine_.load(std::memory_order_relaxed) != 0 ||
           (has_children_.load(std::memory_order_relaxed) && EventSetTable::has_watched_members());
  }
  /// The opposite of EventSetTable::adopt(): `fd` of this socket is no longer a stream, but still a
  /// member.
  void release(int fd, const Socket& socket) noexcept;
  /// Ends the membership. `closing`: a number that the socket has lost, but not given back yet.
  void drop(int fd, const Socket& socket, int closing = -1) noexcept;

 private:
  friend class EventSetTable;
  class Member;

  /// Members that may be ready. The one that has waited longest comes first, as in the kernel's
  /// list. The members themselves are its links: taking one costs the same however many there are.
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

  /// Lists what is ready now among the kernel's members and the engine's.
  int take_ready(epoll_event* events, int count, const sigset_t* mask) noexcept;
  /// Called if members have changed sides while a list was made. As in the kernel's list, no member
  /// may appear twice: a program that reads once for each event would wait forever, and one that
  /// closes the socket would hear of it once more. A member that the engine's part reports again is
  /// put off until the next list. Returns how many events are left. The first `kernels` of them are
  /// the kernel's.
  int drop_doubles(epoll_event* events, int kernels, int count) noexcept;
  /// Queues the members with this data again, because the library may not know which of them was
  /// reported. Returns false if that is impossible.
  bool tell_again_locked(uint64_t data) noexcept;
  /// Called after a list that is full of the kernel's events.
  bool ends_kernels_turn(const epoll_event* events, int count) noexcept;
  /// The engine's part: looks at no more than `most` candidates.
  int collect(epoll_event* events, int count, size_t most) noexcept;
  /// Takes the first candidate in hand and finds out what it is ready for. in_hand_ counts it until
  /// the caller has put it back, or dropped it. Called under lock_, which it gives up meanwhile.
  std::shared_ptr<Member> look_at_first_locked(uint32_t& ready) noexcept;
  /// True if the kernel's set has the file that `fd` names, under that number.
  bool kernel_has(int fd) noexcept;
  int ask_kernel(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  /// Does what ask_kernel() does, for the thread that waits for the doorbells as well. Returns 0
  /// also if one has rung.
  int wait_for_doorbells(engine::Parking& parking, epoll_event* events, int count, int timeout_ms,
                         const sigset_t* mask) noexcept;
  int take_oneshots(epoll_event* events, int count, int timeout_ms, const sigset_t* mask) noexcept;
  void index_oneshot(Member& member, bool present) noexcept;
  /// Queues the member as a candidate. `news`: something has happened to it; it is not merely put
  /// back behind the others.
  void queue(Member& member, bool news = true) noexcept;
  void unqueue(Member& member) noexcept;
  /// In a small set, makes candidates of the members that have Socket::has_late_arrivals().
  bool show_late_arrivals() noexcept;
  /// True if nothing waits to be collected, and no thread has a candidate that it may put back.
  bool is_idle() noexcept;
  /// Called before a thread returns with events: candidates may be left while another one sleeps.
  void wake_another() noexcept;
  bool has_candidates() const noexcept { return candidates_.load(std::memory_order_seq_cst) != 0; }
  /// Registers the member where its stream is now: in the kernel's set or not.
  void settle(Member& member) noexcept;
  void settle_locked(Member& member, bool native) noexcept;
  void settle_all() noexcept;
  /// Makes the kernel's set readable while there are candidates, from now on. `nested`: also for
  /// threads that sleep in another set, where the library may not see them. `edges`: and each
  /// candidate is news to those threads. If there is no descriptor for this, the members leave the
  /// engine for good.
  void become_watched(bool nested, bool edges) noexcept;
  void show_candidates_locked() noexcept;
  void announce_locked() noexcept;
  void put_back_first_locked(Member& member) noexcept;
  void make_all_native() noexcept;
  void count_on_engine_locked(int change) noexcept;
  int control_child(int operation, int fd, const std::shared_ptr<EventSet>& child,
                    epoll_event* event) noexcept;
  /// True if the kernel's event of a member that is a set is still right after its candidates have
  /// been looked over.
  bool holds(const epoll_event& event) noexcept;
  /// True if exactly one member of the kernel's set has this data; false also if that cannot be
  /// seen.
  bool is_of_one_member(uint64_t data) noexcept;
  /// Called when the set's last descriptor is gone.
  void abandon() noexcept;
  /// Takes out of the kernel's set what wakes threads that wait for the engine's members.
  void leave_set() noexcept;
  bool is_alive(const Member& member) noexcept;

  static constexpr int kMostNested = 5;  // the kernel's own limit

  std::atomic<int> epoll_fd_;  // becomes another number of the set when this one is closed
  engine::EventSleeper& sleeper_;
  bool usable_ = false;  // epoll_fd_ is an epoll descriptor, and the sleeper has its eventfd
  engine::Mutex lock_;
  std::unordered_map<int, std::shared_ptr<Member>> members_;
  bool is_abandoned_ = false;  // accepts no members any more
  ReadyList ready_;
  std::unordered_multimap<uint64_t, Member*> oneshots_;  // by the program's data
  std::atomic<bool> has_oneshots_{false};
  std::atomic<size_t> candidates_{0};
  std::atomic<int> on_engine_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<uint32_t> moves_{0};  // of members, to or from the kernel's set; written under lock_
  int in_hand_ = 0;  // candidates that threads have taken out and are looking at; under lock_
  // For take_ready(), when more is ready than the program has room for. Two threads at once may mix
  // up whose turn it is, but nothing worse.
  std::atomic<size_t> given_{0};
  std::atomic<bool> kernels_turn_{false};
  std::atomic<unsigned> kernels_calls_{0};
  std::atomic<uint64_t> kernels_first_{0};
  // For a set that is watched itself; written under lock_:
  std::atomic<bool> watched_{false};
  std::atomic<bool> must_be_native_{false};  // it should be watched, but can't be
  bool nested_ = false;
  bool edges_ = false;
  std::atomic<bool> signalled_{false};
  int signal_fd_ = -1;
  // For a set with sets in it; under lock_, except the flag:
  struct Child {
    int fd;
    std::weak_ptr<EventSet> set;
    epoll_event event;
  };
  std::vector<Child> children_;
  std::atomic<bool> has_children_{false};
};

}  // namespace sidestep::preload

#pragma once
/// Decides who attends to what the peers of a node send. This is the one place that knows who
/// polls, who sleeps, who owns the doorbells, and whether the peers have to ring.
///
/// While anything may be waited for, one of these is true:
///
///   looks     a thread polls in a loop (wait.hpp) and has not paused. It dispatches for all.
///   attended  the devices are armed, so that peers ring the doorbell, and somebody hears it: the
///             doorbell owner, or else the progress thread, which listens.
///   ticks     neither of these is needed, because nobody sleeps and no stream is about to move.
///             The progress thread looks at each of its ticks.
///
/// Threads move between these states without a lock:
///
///   sleeper      A thread that is about to sleep counts itself (park(), count_unseen()) and then
///                asks whether anybody looks. If nobody does, it arms the devices, polls once more,
///                and sleeps.
///   poller       A thread that stops looking takes itself off the count (leave(), pause()) and
///                then asks whether anybody sleeps. If somebody does, it arms the devices and polls
///                once more.
///
/// Both steps of both threads are sequentially consistent, so one of the two sees the other. The
/// poll comes after the arming: it finds whatever a peer posted before that peer could see the
/// devices armed. For everything later the peer rings.
///
///   owner        A thread owns the doorbells if it is the only parked thread when it parks
///                (own_doorbells()). From then on the progress thread no longer listens. Before the
///                owner goes on, it gives them up (give_up_doorbells()). It has taken itself off
///                the count by the time it asks whether others are parked. These may have found the
///                doorbells taken, so the progress thread has to listen for them again.
///   moves        A stream that is about to move needs fragments dispatched that no thread waits
///                for. For 200 ms the progress thread checks each millisecond whether anybody
///                polls.
///
/// Any thread may call any of these functions. None blocks or allocates; those that arm, disarm or
/// change who listens make system calls.
#include <atomic>
#include <cstdint>

#include "engine/progress/polling_threads.hpp"

namespace sidestep::engine {

class Progress;

class Attendance {
 public:
  explicit Attendance(Progress& progress) noexcept : progress_(progress) {}
  Attendance(const Attendance&) = delete;

  // --- threads that poll in a loop

  void enter() noexcept {
    polling_.enter();
    disarm();
  }
  void leave() noexcept {
    if (polling_.leave()) see_to_sleepers();
  }
  /// pause() and resume() surround whatever may keep the thread from polling for a while.
  void pause() noexcept {
    if (polling_.pause()) see_to_sleepers();
  }
  void resume() noexcept {
    polling_.resume();
    disarm();
  }
  bool anyone_looks() const noexcept { return polling_.looking() != 0; }
  /// The number of threads that poll, including those that have paused. A hint.
  uint32_t polling() const noexcept { return polling_.all(); }

  // --- threads that sleep until something is dispatched to them (Parking in wait.hpp)

  /// Returns true if no other thread is parked. The caller then calls rearm() and looks at what it
  /// waits for.
  bool park() noexcept { return parked_.fetch_add(1, std::memory_order_seq_cst) == 0; }
  /// Called by a parked thread that does not own the doorbells.
  void unpark() noexcept { parked_.fetch_sub(1, std::memory_order_seq_cst); }
  /// Called by a parked thread that wants to wait for the doorbells itself from now on. False if
  /// another thread already does.
  bool own_doorbells() noexcept;
  /// The owner's unpark().
  void give_up_doorbells() noexcept;
  /// Makes the peers ring for a parked thread, unless somebody looks.
  void rearm() noexcept {
    if (!anyone_looks() && !is_attended()) arm_and_poll();
  }
  int parked() const noexcept { return parked_.load(std::memory_order_seq_cst); }

  // --- streams for which threads may sleep without being parked

  /// While there are any such streams, the devices stay armed whenever nobody polls.
  void count_unseen(int change) noexcept { unseen_.fetch_add(change, std::memory_order_seq_cst); }
  bool has_unseen() const noexcept { return unseen_.load(std::memory_order_seq_cst) != 0; }

  // --- streams that move

  /// A stream is about to move. The devices are not armed for it each time that polling ends:
  /// streams that have moved would pay for that with a call and a wake-up for what the next poll
  /// finds anyway, and would pay all the time where new streams keep coming.
  void expect_moves() noexcept;
  bool expects_moves() const noexcept { return moves_until_.load(std::memory_order_seq_cst) != 0; }
  /// Stops expecting moves once the time is over. Called by the progress thread.
  void check_moves(uint64_t now) noexcept;

  // --- what sleepers and moves depend on

  bool others_sleep() const noexcept {
    return parked_.load(std::memory_order_relaxed) != 0 || has_unseen();
  }
  bool others_depend_on_polling() const noexcept { return others_sleep() || expects_moves(); }
  /// True if the peers ring and somebody hears it.
  bool is_attended() const noexcept;
  /// Asks the peers to ring, and polls once more. After this a thread may sleep.
  void arm_and_poll() noexcept;
  /// Called when the peers need not ring, or have rung: they ring once each time that the devices
  /// are armed.
  void disarm() noexcept;

 private:
  bool is_armed() const noexcept;
  /// Called when nobody looks any more.
  void see_to_sleepers() noexcept;

  Progress& progress_;
  // On a cache line of its own: all waiting threads write it.
  alignas(64) PollingThreads polling_;
  alignas(64) std::atomic<int> parked_{0};
  std::atomic<bool> doorbells_owned_{false};
  std::atomic<uint64_t> moves_until_{0};  // 0: no move is expected
  std::atomic<int> unseen_{0};
};

}  // namespace sidestep::engine

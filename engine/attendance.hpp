#pragma once
/// Who attends to what the peers of a node send: one place for who polls, who sleeps, who leads,
/// and whether the peers are to ring.
///
/// While anything may be waited for, one of these is true:
///
///   looks     a thread polls in a loop (wait.hpp) and has not paused. It dispatches for all.
///   attended  the devices are armed, so that peers ring the doorbell, and somebody hears it: the
///             parked thread that leads, or else the progress thread, which listens.
///   ticks     neither of these is needed, because nobody sleeps and no stream is about to move.
///   The
///             progress thread looks at each of its ticks.
///
/// Threads go from one to the other without a lock:
///
///   who sleeps   counts itself (park(), count_unseen()), and then asks whether anybody looks.
///   Where
///                nobody does it arms the devices, polls once more, and sleeps.
///   who looks    takes itself off (leave(), pause()), and then asks whether anybody sleeps. Where
///                somebody does it arms the devices and polls once more.
///
/// Both steps of both are sequentially consistent, so that one of the two sees the other. The poll
/// comes after the arming: what a peer has posted before it could see the devices armed is found by
/// it, and for the rest the peer rings.
///
///   who leads    is the only parked thread when it parks (lead()). The progress thread listens no
///                more from then on. Before it goes on it gives the lead up (stop_leading()); it
///                has counted itself off by then, and asks whether others are parked: these may
///                have found the lead taken, and so the progress thread is to listen again for
///                them.
///   moves        a stream that is about to move needs fragments dispatched that no thread waits
///                for. For 200 ms the progress thread looks each millisecond whether anybody polls.
///
/// Any thread may call any of it. No call blocks or allocates; those that arm, disarm or change who
/// listens make system calls.
#include <atomic>
#include <cstdint>

#include "engine/progress/polling_threads.hpp"

namespace sidestep::engine {

class Node;

class Attendance {
 public:
  explicit Attendance(Node& node) noexcept : node_(node) {}
  Attendance(const Attendance&) = delete;

  // --- threads that poll in a loop

  void enter() noexcept {
    polling_.enter();
    disarm();
  }
  void leave() noexcept {
    if (polling_.leave()) see_to_sleepers();
  }
  /// Around what may take it away from polling for a while.
  void pause() noexcept {
    if (polling_.pause()) see_to_sleepers();
  }
  void resume() noexcept {
    polling_.resume();
    disarm();
  }
  bool anyone_looks() const noexcept { return polling_.looking() != 0; }
  /// Threads that poll, those that have paused included. A hint.
  uint32_t polling() const noexcept { return polling_.all(); }

  // --- threads that sleep until something is dispatched to them (Parking in wait.hpp)

  /// True: no other thread is parked. Then rearm(), and a look at what is waited for.
  bool park() noexcept { return parked_.fetch_add(1, std::memory_order_seq_cst) == 0; }
  /// By one that does not lead.
  void unpark() noexcept { parked_.fetch_sub(1, std::memory_order_seq_cst); }
  /// By one that has parked and waits for the doorbells itself from now on. False: another one
  /// does.
  bool lead() noexcept;
  /// unpark() of the one that leads.
  void stop_leading() noexcept;
  /// The peers ring for one that is parked, unless somebody looks.
  void rearm() noexcept {
    if (!anyone_looks() && !is_attended()) arm_and_poll();
  }
  int parked() const noexcept { return parked_.load(std::memory_order_seq_cst); }

  // --- streams for which threads may sleep without being parked

  /// While there are any, the devices stay armed whenever nobody polls.
  void count_unseen(int change) noexcept { unseen_.fetch_add(change, std::memory_order_seq_cst); }
  bool has_unseen() const noexcept { return unseen_.load(std::memory_order_seq_cst) != 0; }

  // --- streams that move

  /// One is about to. The devices are not armed at each end of polling for it: streams that have
  /// moved would pay for that, with a call and a wake-up for what the next poll finds, and all the
  /// time where new streams keep coming.
  void expect_moves() noexcept;
  bool expects_moves() const noexcept { return moves_until_.load(std::memory_order_seq_cst) != 0; }
  /// Progress thread: whether the time is over.
  void check_moves(uint64_t now) noexcept;

  // --- what they depend on

  bool others_sleep() const noexcept {
    return parked_.load(std::memory_order_relaxed) != 0 || has_unseen();
  }
  bool others_depend_on_polling() const noexcept { return others_sleep() || expects_moves(); }
  /// The peers ring, and somebody hears it.
  bool is_attended() const noexcept;
  /// Asks the peers to ring, and polls once more. After it a thread may sleep.
  void arm_and_poll() noexcept;
  /// The peers need not ring, or have rung: they do so once each time that the devices are armed.
  void disarm() noexcept;

 private:
  bool is_armed() const noexcept;
  /// Nobody looks any more.
  void see_to_sleepers() noexcept;

  Node& node_;
  // A line for itself: all that wait write it.
  alignas(64) PollingThreads polling_;
  alignas(64) std::atomic<int> parked_{0};
  std::atomic<bool> led_{false};
  std::atomic<uint64_t> moves_until_{0};  // 0: no move is expected
  std::atomic<int> unseen_{0};
};

}  // namespace sidestep::engine

#pragma once
/// How a thread sleeps in a blocking call on a stream or in poll(2): until something happens to one
/// of its streams, a descriptor of the kernel's is ready, its time is up, or a signal or a
/// cancellation comes.
///
/// There are three ways (engine/progress/waiter.hpp). A thread that waits for the engine only
/// sleeps on a word of its own. If everything that it waits for is to be read from peers that wake
/// it by themselves, it sleeps on their words as well. A thread that waits for descriptors too, has
/// a signal mask for the sleep, or owns the doorbells (engine/progress/attendance.hpp), sleeps in
/// ppoll(2). In all three ways each round of the loop takes the same steps, in this order: prepare
/// to be woken; look; sleep; answer the doorbells. Anything that happens after the look wakes the
/// thread.
///
/// An object belongs to one thread and one sleep. The caller adds the watches on the streams before
/// the sleep and removes them after it.
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <optional>
#include <span>

#include "engine/base/cancellation.hpp"
#include "engine/progress/wait.hpp"
#include "engine/progress/waiter.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

class ThreadSleep {
 public:
  /// The room that `fds` need behind those of the program: for the alarm and the doorbells.
  static constexpr size_t kOwnFds = 1 + engine::Parking::kBells;

  /// `mask`: the program's signal mask for the sleep; null: the thread's mask.
  explicit ThreadSleep(engine::Sleeper& sleeper, const sigset_t* mask = nullptr) noexcept
      : sleeper_(sleeper), mask_(mask) {}
  ~ThreadSleep() { sleeper_.finish(); }
  ThreadSleep(const ThreadSleep&) = delete;

  /// Call at most one of park() and nap(), before sleep().
  /// Something that the thread waits for may come by a device.
  void park(engine::Progress& progress) noexcept { parking_.emplace(progress, true); }
  /// Everything that the thread waits for is to be read from these streams, whose peers wake it:
  /// engine::waker_of(). No more than Sleeper::kMostNaps.
  struct Napped {
    engine::Endpoint* waker;
    engine::Stream* stream;
    engine::Waiter* waiter;
  };
  void nap(engine::Progress& progress, std::span<const Napped> napped) noexcept {
    progress_ = &progress;
    napped_ = napped;
    napping_.emplace(progress);
  }

  /// `fds`: the descriptors that the kernel is asked about, with room for kOwnFds more behind them.
  /// ask()       is called before each look: fills in the program's; true if there are any.
  /// limit()     is called before each sleep; null is forever.
  /// ready()     is true if what the thread waits for has come. Also called while a doorbell is
  ///             answered.
  /// interrupted()
  ///
  /// Returns 0 if the time is up; -EINTR, as ppoll(2); 1 if the caller has to look for itself, with
  /// what the kernel has found in `fds`.
  template <typename Ask, typename Limit, typename Ready, typename Interrupted>
  int sleep(std::span<pollfd> fds, Ask ask, Limit limit, Ready ready,
            Interrupted interrupted) noexcept {
    const engine::CancellableSleep cancellable(&sleeper_);
    for (answered_ = false;;) {
      prepare(ask());
      if (ready() || interrupted()) return 1;
      const int result = wait(fds, limit());
      if (sleeper_.stay_awake() || result <= 0 || kernel_has_found(fds)) return std::min(result, 1);
      if (naps_) {
        // The peer has rung. This thread looks before it announces another nap, for which the peer
        // would ring again.
        for (const Napped& one : napped_) progress_->poll_for(*one.stream);
        if (ready()) return 1;
      } else {
        answered_ = parking_ && parking_->answer(bells_in(fds), ready);
      }
    }
  }

 private:
  std::span<const pollfd> bells() const noexcept {
    return parking_ ? parking_->bells() : std::span<const pollfd>();
  }
  std::span<pollfd> bells_in(std::span<pollfd> fds) const noexcept {
    return fds.subspan(fds.size() - engine::Parking::kBells, bells().size());
  }
  void prepare(bool asks_kernel) noexcept;
  int wait(std::span<pollfd> fds, const timespec* limit) noexcept;
  bool kernel_has_found(std::span<const pollfd> fds) const noexcept;

  engine::Sleeper& sleeper_;
  const sigset_t* const mask_;
  engine::Progress* progress_ = nullptr;
  std::span<const Napped> napped_;
  std::optional<engine::Parking> parking_;
  std::optional<engine::Napping> napping_;
  std::optional<SignalGate> gate_;
  bool by_word_ = false;   // in this round
  bool naps_ = false;      // in this round
  bool answered_ = false;  // in the round before
  engine::Nap words_[engine::Sleeper::kMostNaps];
};

}  // namespace sidestep::preload

#pragma once
/// How a thread sleeps in a call on streams, blocking or poll(2): until something happens to one of
/// them, a descriptor of the kernel's is ready, its time is up, or a signal or a cancellation
/// comes.
///
/// There are three ways (engine/progress/waiter.hpp). A thread that waits for the engine only
/// sleeps on a word: that of its own, and of the peers that wake it by themselves, where all that
/// it waits for is to be read from such peers. One that waits for descriptors as well, has a signal
/// mask for the sleep, or leads (engine/attendance.hpp), sleeps in ppoll(2). Whichever it is, each
/// round of the loop has the same steps, in this order: be prepared to be woken; look; sleep;
/// answer the doorbells. What comes after the look wakes the thread.
///
/// An object is of one thread and one sleep. The watches on the streams are the caller's: added
/// before, taken away after.
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <ctime>
#include <optional>
#include <span>

#include "engine/base/cancellation.hpp"
#include "engine/node.hpp"
#include "engine/progress/waiter.hpp"
#include "engine/wait.hpp"
#include "preload/signals.hpp"

namespace sidestep::preload {

class ThreadSleep {
 public:
  /// Room that fds need behind those that the program asks for: the alarm, and the doorbells.
  static constexpr size_t kOwnFds = 1 + engine::Parking::kBells;

  /// `mask`: the program's own for the sleep; null: the thread's.
  explicit ThreadSleep(engine::Sleeper& sleeper, const sigset_t* mask = nullptr) noexcept
      : sleeper_(sleeper), mask_(mask) {}
  ~ThreadSleep() { sleeper_.finish(); }
  ThreadSleep(const ThreadSleep&) = delete;

  /// One of the two at most, before sleep().
  /// Something that is waited for may come by a device of the node.
  void park(engine::Node& node) noexcept { parking_.emplace(node, true); }
  /// Everything that is waited for is to be read from these streams, the peers of which wake the
  /// thread: engine::waker_of(). No more than Sleeper::kMostNaps.
  struct Napped {
    engine::Endpoint* waker;
    engine::Stream* stream;
    engine::Waiter* waiter;
  };
  void nap(engine::Node& node, std::span<const Napped> napped) noexcept {
    node_ = &node;
    napped_ = napped;
    napping_.emplace(node);
  }

  /// `fds`: those that the kernel is asked for, and room for kOwnFds more behind them.
  /// ask()       before each look: fills in those of the program. Whether there are any.
  /// limit()     before each sleep: null is for ever.
  /// ready()     what is waited for has come. Also within a doorbell's answer.
  /// interrupted()
  ///
  /// 0: the time is up. -EINTR, as ppoll(2). 1: the caller is to look for itself; what the kernel
  /// has found stands in `fds`.
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
        // The peer has rung. It looks before it announces another nap, which would be rung for
        // again.
        for (const Napped& one : napped_) node_->poll_for(*one.stream);
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
  engine::Node* node_ = nullptr;
  std::span<const Napped> napped_;
  std::optional<engine::Parking> parking_;
  std::optional<engine::Napping> napping_;
  std::optional<SignalGate> gate_;
  bool by_word_ = false;   // of this round
  bool naps_ = false;      // the same
  bool answered_ = false;  // in the one before
  engine::Nap words_[engine::Sleeper::kMostNaps];
};

}  // namespace sidestep::preload

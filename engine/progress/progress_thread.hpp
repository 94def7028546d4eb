#pragma once
/// The dedicated progress thread: steps in when no application thread polls.
///
/// It sleeps on the devices' doorbells and on the anchors of all bound streams (edge-triggered).
/// When a doorbell rings it polls and arms again. A timer of 20 to 200 ms covers streams that
/// nobody waits for (a program that computes): the thread polls the lanes that nobody has polled,
/// and arms if nobody attends to the doorbells. The timer is 1 ms while streams are expected to
/// move. Until the first device is opened, the thread only checks once a second whether the
/// program's threads have ended, whether streams are still expected to move, and which may come
/// back.
#include <array>
#include <atomic>
#include <cstdint>

#include "engine/base/lock.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

class Device;
class ManagerJobs;
class Progress;
class Stream;
class StreamUpkeep;

class ProgressThread {
 public:
  ProgressThread(Progress& progress, ManagerJobs& jobs, StreamUpkeep& upkeep) noexcept
      : progress_(progress), jobs_(jobs), upkeep_(upkeep) {}
  ProgressThread(const ProgressThread&) = delete;
  /// Starts the thread. False if the kernel gives none.
  bool start() noexcept;

  /// Called by the manager's thread before the first device. False if the kernel gives no
  /// descriptor (logged once).
  bool open() noexcept;
  /// Watches a device for doorbells. Any thread, after open().
  bool watch_device(const Device& device) noexcept;
  /// Watches a stream's anchor for news and for its end. Any thread; the watch ends with the
  /// anchor.
  void watch_anchor(const Stream& stream) noexcept;
  void unwatch_anchor(int anchor) noexcept;
  /// Sets whether doorbells wake this thread, for those devices that ring any thread. They do not
  /// while a parked thread waits for them itself (Parking). Any thread.
  void listen(bool listens) noexcept;
  bool listens() const noexcept { return listens_.load(std::memory_order_seq_cst); }
  /// True while the thread checks each millisecond whether somebody polls, because streams are
  /// expected to move. Any thread.
  bool looks_often() const noexcept { return looks_often_.load(std::memory_order_seq_cst); }
  /// Called after ask_engine_threads_to_end().
  void wake_to_end() noexcept;

 private:
  static void* entry(void* self) noexcept;
  void run() noexcept;
  /// Polls the lanes that nobody has polled since their poll counts were `seen`. True if these are
  /// all lanes in use.
  bool poll_unattended(const std::array<uint64_t, kLanes>& seen, bool& found) noexcept;
  bool add(int fd, uint64_t data, uint32_t events) noexcept;
  /// True if this thread has to end; the process ends with it if all threads of the program have.
  bool is_at_end(uint64_t now) noexcept;

  /// True if the thread has to look often until the next call.
  bool is_to_look_often() noexcept;
  /// Sleeps until open(), or for a second.
  void sleep_unopened() noexcept;
  void wake_unopened() noexcept;

  Progress& progress_;
  ManagerJobs& jobs_;
  StreamUpkeep& upkeep_;
  std::atomic<int> epoll_fd_{-1};      // release pairs with acquire: it may be used
  std::atomic<uint32_t> wake_ups_{0};  // wake-ups of the thread while it has no epoll set
  bool told_ = false;                  // it has logged that there was no descriptor
  uint64_t look_at_ = 0;               // when to look for the program's threads next
  Mutex listen_lock_;
  std::atomic<bool> listens_{true};
  std::atomic<bool> looks_often_{false};
};

}  // namespace sidestep::engine

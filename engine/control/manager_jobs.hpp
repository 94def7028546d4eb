#pragma once
/// What any thread may ask of the connection manager (Ibdxnet, section 7.1): the queue of its jobs,
/// and the streams that are too young to be looked for.
///
/// A caller posts a job and carries on. The manager's thread takes the jobs in order. Any thread
/// may call what is not said to be the manager's; none of it waits, and wake() is
/// async-signal-safe. A job for which there is no memory is dropped: the stream that it concerns
/// stays on the kernel.
#include <atomic>
#include <cstdint>
#include <deque>
#include <optional>

#include "engine/base/lock.hpp"

namespace sidestep::engine {

class Device;
class Endpoint;

/// Streams in the order in which they come of age.
class YoungStreams {
 public:
  struct Young {
    uint32_t stream;
    uint32_t generation;
    uint64_t due;  ///< of now_ns()
  };

  /// True if the manager has to be woken: the stream is the only one.
  bool add(const Young& one) noexcept;
  /// Takes a stream that is due by `limit`. Manager's thread.
  std::optional<Young> take(uint64_t limit) noexcept;
  /// When the first of those that were left by take() is due; 0: there was none. Manager's thread.
  uint64_t next_due() const noexcept { return next_due_; }

 private:
  Mutex lock_;
  std::deque<Young> streams_;
  uint64_t next_due_ = 0;
};

class ManagerJobs {
 public:
  struct Job {
    enum class Kind { query, broken, grow, leave, look, sweep, tell, meet } kind;
    uint32_t stream = 0;
    uint32_t generation = 0;
    uint32_t connection = 0;
    const Endpoint* endpoint = nullptr;  // broken: the connection may have been replaced since
    Device* device = nullptr;            // grow
    bool said_all = false;               // leave
  };

  /// `ask_after`: SIDESTEP_ASK_AFTER in milliseconds.
  explicit ManagerJobs(uint32_t ask_after) : ask_after_(ask_after * uint64_t{1'000'000}) {}
  ManagerJobs(const ManagerJobs&) = delete;

  /// Finds the owner of the other end of an accepted stream, and binds the two.
  void query(uint32_t stream, uint32_t generation) noexcept;
  /// Does the same, SIDESTEP_ASK_AFTER from now, if the stream still exists then.
  void query_later(uint32_t stream, uint32_t generation) noexcept;
  /// Enters a stream that was made by connect() in the directory after half that time: most short
  /// streams never need the entry.
  void list_later(uint32_t stream, uint32_t generation) noexcept;
  /// Finds out whether the program may wait for this stream past the library; if not, clears the
  /// stream.
  void look_for_waiters(uint32_t stream, uint32_t generation) noexcept;
  /// Tells the nodes that wait for this stream, which the program has connected, that it is here.
  void tell(uint32_t stream, uint32_t generation) noexcept;
  /// Reports that the endpoint of this connection can no longer be used: its peer broke the
  /// protocol, or the device failed.
  void report_broken(uint32_t connection, const Endpoint& endpoint) noexcept;
  /// Lets the device, which is short of memory, take more into use.
  void grow(Device& device) noexcept;
  /// Removes from the directory what nodes that no longer exist have left there.
  void sweep() noexcept;
  /// Called when a stream may lead to another host.
  void meet_other_hosts() noexcept;
  /// True if this node talks to other hosts; if not, streams to them stay on the kernel.
  bool talks_to_other_hosts() const noexcept {
    // relaxed: it is set before the first stream is opened.
    return talks_to_others_.load(std::memory_order_relaxed);
  }
  /// Makes the manager look at what it has to do.
  void wake() noexcept;
  void post(const Job& job) noexcept;

  // --- the manager ---

  /// Called before the manager's thread starts. `epoll_fd` is what that thread waits for, and has
  /// `writable` in it, a descriptor that is always writable.
  void open(int epoll_fd, int writable) noexcept;
  void set_talks_to_other_hosts(bool talks) noexcept {
    talks_to_others_.store(talks, std::memory_order_relaxed);
  }
  std::deque<Job> take();
  YoungStreams& unasked() noexcept { return unasked_; }
  YoungStreams& unlisted() noexcept { return unlisted_; }
  /// A quarter of SIDESTEP_ASK_AFTER, in nanoseconds: who is due within that may be taken too.
  uint64_t soon() const noexcept { return ask_after_ / 4; }
  bool wants_sweep() const noexcept { return sweep_wanted_.load(std::memory_order_relaxed); }
  void begin_sweep() noexcept { sweep_wanted_.store(false, std::memory_order_relaxed); }

 private:
  const uint64_t ask_after_;  // nanoseconds
  std::atomic<int> epoll_fd_{-1};
  std::atomic<int> writable_{-1};
  std::atomic<bool> talks_to_others_{false};
  std::atomic<bool> meets_others_{false};
  std::atomic<bool> sweep_wanted_{false};
  Mutex lock_;
  std::deque<Job> jobs_;
  YoungStreams unasked_;   // to be asked for
  YoungStreams unlisted_;  // to be entered in the directory
};

}  // namespace sidestep::engine

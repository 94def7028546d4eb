#pragma once
/// The progress of a node: its devices and connections, what is polled and dispatched, and who does
/// that. Any thread of the program may make progress; the progress thread steps in when none does.
///
/// Threads, unless something else is said: any. No function waits, but for the locks that it names;
/// none throws.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "config/config.hpp"
#include "engine/base/counters.hpp"
#include "engine/base/cpu_quota.hpp"
#include "engine/connection/connection_table.hpp"
#include "engine/connection/posting.hpp"
#include "engine/devices/factory.hpp"
#include "engine/progress/attendance.hpp"
#include "engine/progress/crowding.hpp"
#include "engine/progress/deferred.hpp"
#include "engine/progress/lane.hpp"
#include "engine/progress/progress_thread.hpp"

namespace sidestep::engine {

class ManagerJobs;
class Stream;
class StreamTable;
class StreamUpkeep;

class Progress {
 public:
  /// Throws std::bad_alloc: the table of connections is large.
  Progress(const config::Config& config, CountersOfProcessors& counters, ManagerJobs& jobs,
           StreamTable& streams, StreamUpkeep& upkeep)
      : config_(config),
        counters_(counters),
        jobs_(jobs),
        devices_(config),
        recv_lock_(streams),
        deferred_(upkeep),
        thread_(*this, jobs, upkeep) {}
  Progress(const Progress&) = delete;

  // --- polling

  /// Polls the devices and dispatches what arrived, unless another thread is doing it. True if
  /// something was found.
  bool poll() noexcept;
  /// The same for one lane.
  bool poll(Lane& lane) noexcept;
  /// The same for the lanes on which something may arrive for this stream, or over this connection.
  /// Null means any connection.
  bool poll_for(const Stream& stream) noexcept;
  bool poll_for(const Connection* connection) noexcept {
    return connection != nullptr ? poll(lane_of(*connection)) : poll();
  }
  /// Makes the next poll of the lane look at all endpoints.
  void want_all(const Lane& lane) noexcept;
  /// Makes sure that everything posted to this node before the call is dispatched: by this thread,
  /// or by a thread that began to look after the call, for which this one then waits. Must be
  /// called before a program is told that there is nothing, or that an anchor has ended. The caller
  /// holds no lock.
  void drain() noexcept;
  /// The same for one lane.
  void drain(Lane& lane) noexcept;
  /// The same for whatever concerns this stream.
  void drain_for(const Stream& stream) noexcept;
  /// The same for all lanes, under the receive lock.
  void drain_all_locked() noexcept;
  Lane& lane_of(const Connection& connection) noexcept {
    return recv_lock_.open()[connection.lane()];
  }
  /// Spills the bytes of slow readers that keep a peer from sending. Called by the progress thread.
  /// True if it should look again soon.
  bool relieve_peers(uint64_t now) noexcept;

  // --- the parts

  Lanes& recv_lock() noexcept { return recv_lock_; }
  Attendance& attendance() noexcept { return attendance_; }
  Crowding& crowding() noexcept { return crowding_; }
  ConnectionTable& connections() noexcept { return connections_; }
  Posting& posting() noexcept { return posting_; }
  const Posting& posting() const noexcept { return posting_; }
  Deferred& deferred() noexcept { return deferred_; }
  const Deferred& deferred() const noexcept { return deferred_; }
  const Devices& devices() const noexcept { return devices_; }
  ProgressThread& thread() noexcept { return thread_; }
  NodeCounters& counters() noexcept { return counters_.here(); }
  /// How long a thread polls at most before it sleeps, in microseconds (SIDESTEP_SPIN_US).
  uint64_t spin_us() const noexcept { return config_.spin_us; }

  // --- devices and connections; called by the manager

  /// The device that joins this node to one on the same or another host, opened on first use; null
  /// when there is none.
  Device* device_for(DeviceKind kind) noexcept;
  /// True if this device may have another connection. If not, `oldest` is the one that should make
  /// way for it, the least recently used; null if all are in use.
  bool has_room(const Device& device, Connection*& oldest) noexcept;
  /// Takes a new connection into use.
  void add(std::unique_ptr<Connection> connection) noexcept;
  /// Delivers what has arrived over the connection, and takes it out of use. Its streams stay as
  /// they are. Under the receive lock.
  void close_locked(Connection& connection, const char* why) noexcept;

  // --- what has been counted

  struct Received {
    uint64_t polls = 0;     ///< polls of the receive completion queue
    uint64_t receives = 0;  ///< work requests
    uint64_t fragments = 0;
  };
  /// The sums over all lanes.
  Received received() noexcept;
  struct Posted {
    uint64_t work_requests = 0;
    uint64_t fragments = 0;
  };
  /// The sums over all connections, including those that are gone. Under the receive lock.
  Posted posted_locked() noexcept;

 private:
  /// Drains what had been posted before the call, and whatever else it finds on the way, but not
  /// everything that a fast peer goes on to post.
  void drain_locked(Lane& lane) noexcept;
  void report_broken(const Endpoint& endpoint) noexcept;
  /// Copies out of the way the pieces that keep a peer's room occupied (Endpoint::is_held_up).
  void spill_held_up_locked(Lane& lane) noexcept;
  /// `waits`: waits for threads that are reading at this moment, which may take a second. False if
  /// some thread is still reading.
  bool spill_locked(Connection& connection, bool waits) noexcept;
  /// Releases the lane after a poll, and counts the poll if it has found all there was.
  void unlock_polled(Lane& lane) noexcept;
  // These two are inlined into their callers, in progress_datapath.cpp: most polls find nothing.
  [[gnu::always_inline]] inline bool poll_once_locked(Lane& lane) noexcept;
  [[gnu::always_inline]] inline bool progress_locked(Lane& lane) noexcept;
  /// Tries to do what was set aside. The caller holds no lock.
  void take_up_set_aside() noexcept;

  const config::Config& config_;
  CountersOfProcessors& counters_;
  ManagerJobs& jobs_;
  Counter closed_work_requests_;
  Counter closed_fragments_;
  alignas(64) Devices devices_;
  ConnectionTable connections_;
  Posting posting_{connections_};
  Lanes recv_lock_;
  CpuQuota quota_;
  Crowding crowding_{quota_};
  Attendance attendance_{*this};
  Deferred deferred_;
  ProgressThread thread_;
};

}  // namespace sidestep::engine

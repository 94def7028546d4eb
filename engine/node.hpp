#pragma once
/// A node: this process in the engine. Owns devices, connections, streams and the two engine
/// threads.
///
/// Started by the first stream, never before; at most one in a process. The object is never
/// destroyed while the process runs: application threads may be inside it until the very end.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/config.hpp"
#include "engine/attendance.hpp"
#include "engine/base/counters.hpp"
#include "engine/base/lock.hpp"
#include "engine/connection/connection_table.hpp"
#include "engine/connection/posting.hpp"
#include "engine/devices/factory.hpp"
#include "engine/progress/crowding.hpp"
#include "engine/progress/lane.hpp"
#include "engine/status.hpp"
#include "engine/stream/recovery.hpp"
#include "engine/stream/stream_services.hpp"
#include "engine/stream/stream_table.hpp"

namespace sidestep::engine {

class Manager;
class ProgressThread;

class Node final : public StreamServices {
 public:
  /// Starts the node; null when it cannot (logged once). Thread-safe; later calls return the same.
  static Node* start(const config::Config& config) noexcept;
  /// The node if it runs.
  static Node* running() noexcept;
  /// It is running, or being started by a thread.
  static bool has_begun() noexcept;
  /// From now on none is started in this process. `for_good`: nor in children of it.
  static void bar(bool for_good) noexcept;
  /// In the child of a fork: unless it was for good.
  static void unbar_in_child() noexcept;
  /// Whether none can be started, or it has been retired: every stream is the kernel's, for good.
  static bool is_barred() noexcept;
  /// Ends the engine's threads; all streams have left. False: one of them still runs.
  bool end_threads() noexcept;
  /// In the child of fork: forgets everything that belongs to the parent.
  /// Not `closes_descriptors`: they are the parent's.
  static void forget_after_fork(bool closes_descriptors = true) noexcept;

  uint16_t nid() const noexcept override { return nid_; }
  /// The process that started the node; another pid is seen in children that share or copied its
  /// memory.
  int pid() const noexcept { return pid_; }
  uint64_t window_size() const noexcept { return config_.window_size; }
  const config::Config& config() const noexcept { return config_; }
  /// To be added to.
  NodeCounters& counters() noexcept override { return counters_.here(); }
  NodeTotals counted() const noexcept { return counters_.sum(); }
  StreamTable& streams() noexcept { return streams_; }
  ConnectionTable& connections() noexcept { return connections_; }
  Posting& posting() noexcept { return posting_; }
  const Posting& posting() const noexcept { return posting_; }
  Manager& manager() noexcept { return *manager_; }
  const Devices& devices() const noexcept { return devices_; }
  /// The device that joins this node to one on the same or another host, opened when it is first
  /// asked for; null when there is none. Manager.
  Device* device_for(DeviceKind kind) noexcept;

  // --- streams ---

  /// Takes a connected (or connecting) TCP socket in. Not `accepted`: it waits to be asked for.
  /// Null when there is no room: the stream stays on the kernel. Not `in_use`:
  /// Stream::note_reading() and note_writing() will tell.
  Stream* open_stream(const Tuple& tuple, int anchor, bool accepted, bool in_use = true) noexcept;
  /// Starts the search for the other end of an accepted stream. One that was connected is looked at
  /// where it may lead to another host, and those are not talked to.
  void ask_for_owner(const Stream& stream) noexcept;
  /// A stream that is not bound stays where it is, for good. Its reason is set already.
  void keep_on_kernel(Stream& stream) noexcept override;
  /// Whether fragments wait for room or for a lock.
  bool has_deferred() const noexcept { return retry_count_.load(std::memory_order_relaxed) != 0; }
  /// The process ends, or is another program soon: waits, for a time, until the peers have what was
  /// sent to them, and takes leave of them. `ended`: so have all streams, and none will move.
  void finish(bool ended) noexcept;
  /// As close_stream(), of a stream that has not been joined to its other end. False: it has been,
  /// and nothing is done.
  bool close_undecided(Stream& stream) noexcept;
  /// The descriptor is gone; the caller no longer uses the stream. `spare_anchor`: a duplicate of
  /// the anchor, which the engine closes when its end mark is out; -1 when finish_locked() has said
  /// that it is. The anchor itself is closed by the caller after this.
  void close_stream(Stream& stream, int spare_anchor) noexcept;
  /// Threads that are inside a blocking connect(): their stream may be asked for before it exists.
  std::atomic<int> connecting{0};

  /// Where those that have been connected are looked for; null while there is none.
  Directory* directory() const noexcept { return directory_.load(std::memory_order_seq_cst); }
  /// From now on this one, which is never taken back. Manager.
  void use_directory(Directory& directory) noexcept;
  void note_full_directory(Stream& stream) noexcept override;

  // --- progress; any thread, never blocks ---

  /// Polls the devices and dispatches what arrived, unless another thread is doing it. True when
  /// something was found.
  bool poll() noexcept;
  /// The same of one lane.
  bool poll(Lane& lane) noexcept;
  /// The same of those from which something may come for this stream, or by this connection. Null:
  /// any.
  bool poll_for(const Stream& stream) noexcept;
  bool poll_for(const Connection* connection) noexcept {
    return connection != nullptr ? poll(lane_of(*connection)) : poll();
  }
  /// The next poll of each lane looks at all endpoints. Any thread.
  void want_all() noexcept;
  void want_all(const Lane& lane) noexcept;
  /// Sees to it that everything that had been posted to this node before the call is dispatched:
  /// by this thread, or by one that began to look after the call, which is waited for. To be called
  /// before a program is told that there is nothing, or that an anchor has ended. No lock is held.
  void drain() noexcept;
  /// The same of one lane.
  void drain(Lane& lane) noexcept;
  /// The same of what concerns this stream.
  void drain_for(const Stream& stream) noexcept;
  Lane& lane_of(const Connection& connection) noexcept {
    return recv_lock_.open()[connection.lane()];
  }
  /// What all lanes have counted. Any thread.
  struct Received {
    uint64_t polls = 0;     ///< of the receive completion queue
    uint64_t receives = 0;  ///< work requests
    uint64_t fragments = 0;
  };
  Received received() noexcept;
  /// Spills slow readers whose bytes keep a peer from sending. Progress thread. True: look again
  /// soon.
  bool relieve_peers(uint64_t now) noexcept;

  // --- waiting (wait.hpp) ---

  Attendance& attendance() noexcept { return attendance_; }
  const Attendance& attendance() const noexcept { return attendance_; }
  Crowding& crowding() noexcept { return crowding_; }

  // --- for the parts of the engine ---

  Lanes& recv_lock() noexcept { return recv_lock_; }
  void retry_later(Stream& stream) noexcept override;
  void stream_ended(Stream& stream) noexcept override;
  void expect_moves() noexcept override;
  void watch_anchor(Stream& stream) noexcept override;
  void tell_of_entry(Stream& stream) noexcept override;
  void look_for_waiters(Stream& stream) noexcept override;
  void count_switch_up(Stream& stream) noexcept override;
  void count_switch_down(Stream& stream) noexcept override;
  /// Of all streams, the closed ones included.
  StreamTotals totals();
  /// Streams whose descriptor is open. The caller holds recv_lock().
  std::vector<Stream*> open_streams_locked();
  /// Of connections that are gone.
  uint64_t closed_work_requests() const noexcept { return closed_work_requests_.get(); }
  uint64_t closed_fragments() const noexcept { return closed_fragments_.get(); }
  uint64_t switches_up() const noexcept { return switches_up_.get(); }
  uint64_t switches_down() const noexcept { return switches_down_.get(); }
  /// Whether this device may have another connection; if not, the one that should make way for it,
  /// the least recently used. Null: all are in use. Manager.
  bool has_room(const Device& device, Connection*& oldest) noexcept;
  /// Takes a new connection into use. Manager.
  void add_connection(std::unique_ptr<Connection> connection) noexcept;
  /// It can't be used any more, and nothing is to be learned of the peer: delivers what has
  /// arrived. The streams that have not landed end with an error, but for those of a process that
  /// has ended and of which all has arrived: what there is to tell of them the anchor tells.
  /// Manager.
  void lose_connection(Connection& connection, const char* why, PeerProcess peer) noexcept;
  /// It can't be used any more, but its peer may live (stream/recovery.hpp): delivers what has
  /// arrived, closes it, and returns what the peer has to know of its streams. Manager.
  std::vector<StreamReport> fail_connection(Connection& connection, const char* why) noexcept;
  /// The peer's reports of a connection that has failed: moves its streams to their anchors.
  /// Manager.
  void land_streams(Connection& connection, std::span<const StreamReport> reports) noexcept;
  /// The stream has lost its connection to another, and may come back some time. The caller holds
  /// recv_lock().
  void expect_return_locked(Stream& stream) noexcept override;
  /// It was refused. `begin`: for want of room, also where it comes for the first time. False: it
  /// stays on the kernel for good.
  bool try_again_locked(Stream& stream, bool begin) noexcept;
  /// Looks after those. Progress thread.
  void bring_back(uint64_t now) noexcept;
  void forget_suspect_locked(Stream& stream) noexcept override;
  /// An anchor has news (progress thread).
  void anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept;
  /// A reader has found the end of the anchor, and Stream::doubts_end(). The stream is signalled
  /// when more is known. Any thread.
  void question_end(Stream& stream) noexcept;
  /// Streams whose anchor has ended without the engine's end.
  bool has_suspects() const noexcept { return suspect_count_.load(std::memory_order_relaxed) != 0; }
  void check_suspects(uint64_t now) noexcept;
  /// Looks after the anchors of streams that the engine carries. Progress thread.
  void keep_anchors_alive(uint64_t now) noexcept;
  ProgressThread& progress_thread() noexcept { return *progress_thread_; }

 private:
  explicit Node(const config::Config& config);
  bool start_parts() noexcept;
  /// Room in all lists for every stream there is, so that nothing that happens to a stream later
  /// needs memory. False when there is none.
  bool make_places() noexcept;
  /// What had been posted before, and whatever else is found on the way: not all that a fast peer
  /// goes on to post.
  void drain_locked(Lane& lane) noexcept;
  /// Copies what a peer's room is kept by out of its way (Endpoint::is_held_up).
  void spill_held_up_locked(Lane& lane) noexcept;
  /// `waits`: for those who read at this moment, which may take a second. False: somebody does.
  bool spill_locked(Connection& connection, bool waits) noexcept;
  /// Lets go of the lane after a poll, and counts it if it has found all there was.
  void unlock_polled(Lane& lane) noexcept;
  // These two inside those that call them, in the file of the data path: most polls find nothing.
  [[gnu::always_inline]] inline bool poll_once_locked(Lane& lane) noexcept;
  [[gnu::always_inline]] inline bool progress_locked(Lane& lane) noexcept;
  /// Under the lock of any lane. What needs the receive lock is set aside, unless that is held.
  void run_retries_locked(bool by_lane) noexcept;
  void retry_closed_locked(Stream& stream, bool settled) noexcept;
  /// Under no lock: tries to do what was set aside.
  void take_up_set_aside() noexcept;
  /// Of streams whose connection is not `excused`. Under recv_lock_, which keeps connections.
  template <typename Excused>
  bool has_deferred_but(Excused excused) noexcept;
  void count_closed(const Stream& stream) noexcept;
  void free_stream_locked(Stream& stream) noexcept;
  void suspect_locked(Stream& stream) noexcept;
  void close_connection_locked(Connection& connection, const char* why) noexcept;
  void end_streams_locked(Connection& connection, PeerProcess peer) noexcept;

  alignas(64) const config::Config config_;
  uint16_t nid_ = 0;
  const int pid_ = static_cast<int>(getpid());
  CountersOfProcessors counters_;
  Mutex totals_lock_;
  StreamTotals closed_totals_;
  Counter closed_work_requests_;
  Counter closed_fragments_;
  Counter switches_up_;
  Counter switches_down_;
  alignas(64) Devices devices_{config_};
  StreamTable streams_;
  std::atomic<Directory*> directory_{nullptr};
  ConnectionTable connections_;
  Posting posting_{connections_};
  std::unique_ptr<Manager> manager_;
  std::unique_ptr<ProgressThread> progress_thread_;

  Lanes recv_lock_{streams_, *this};
  CpuQuota quota_;
  Crowding crowding_{quota_};
  std::atomic<bool> is_over_{false};  // the peers have been told that nothing more will be said
  uint64_t keep_alive_at_ = 0;        // progress thread

  Attendance attendance_{*this};

  alignas(64) Mutex retry_lock_;
  std::atomic<size_t> retry_count_{0};
  std::vector<Stream*> retries_;
  std::vector<Stream*> set_aside_;  // of those that were listed: what needs recv_lock_
  std::atomic<size_t> set_aside_count_{0};
  Mutex retrying_lock_;            // only tried, behind that of a lane
  std::vector<Stream*> retrying_;  // those that are looked at now
  std::atomic<size_t> places_{0};  // how many streams have room in each of these lists
  std::vector<Stream*> suspects_;  // under recv_lock_
  std::atomic<size_t> suspect_count_{0};
  std::vector<Stream*> returning_;  // under recv_lock_
  std::atomic<size_t> returning_count_{0};
};

}  // namespace sidestep::engine

#pragma once
/// A node: this process in the engine. Owns devices, connections, streams and the two engine
/// threads.
///
/// The first stream starts the node, and nothing starts it earlier. A process has at most one. The
/// object is never destroyed while the process runs: application threads may be inside it until the
/// very end.
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
  /// Starts the node; null if it cannot start (logged once). Thread-safe; later calls return the
  /// same.
  static Node* start(const config::Config& config) noexcept;
  /// The node, or null if it does not run.
  static Node* running() noexcept;
  /// True if the node is running, or a thread is starting it.
  static bool has_begun() noexcept;
  /// Prevents any node from being started in this process from now on; with `for_good`, in its
  /// children, too.
  static void bar(bool for_good) noexcept;
  /// Called in the child of a fork(): undoes bar(), unless that was for good.
  static void unbar_in_child() noexcept;
  /// True if no node can be started or the node has been retired: every stream belongs to the
  /// kernel for good.
  static bool is_barred() noexcept;
  /// Ends the engine's threads, after all streams have left. False if one of the threads still
  /// runs.
  bool end_threads() noexcept;
  /// Called in the child of fork(): forgets everything that belongs to the parent. If
  /// `closes_descriptors` is false, the descriptors are the parent's and stay open.
  static void forget_after_fork(bool closes_descriptors = true) noexcept;

  uint16_t nid() const noexcept override { return nid_; }
  /// The process that started the node. Children that share or have copied its memory have another
  /// pid.
  int pid() const noexcept { return pid_; }
  uint64_t window_size() const noexcept { return config_.window_size; }
  const config::Config& config() const noexcept { return config_; }
  /// The counters to add to.
  NodeCounters& counters() noexcept override { return counters_.here(); }
  NodeTotals counted() const noexcept { return counters_.sum(); }
  StreamTable& streams() noexcept { return streams_; }
  ConnectionTable& connections() noexcept { return connections_; }
  Posting& posting() noexcept { return posting_; }
  const Posting& posting() const noexcept { return posting_; }
  Manager& manager() noexcept { return *manager_; }
  const Devices& devices() const noexcept { return devices_; }
  /// The device that joins this node to one on the same or another host, opened on first use; null
  /// when there is none. Called by the manager.
  Device* device_for(DeviceKind kind) noexcept;

  // --- streams ---

  /// Takes in a connected (or connecting) TCP socket. If `accepted` is false, the stream waits to
  /// be asked for. If `in_use` is false, Stream::note_reading() and note_writing() will report its
  /// use. Returns null when there is no room; the stream then stays on the kernel.
  Stream* open_stream(const Tuple& tuple, int anchor, bool accepted, bool in_use = true) noexcept;
  /// Starts the search for the other end of an accepted stream. A connected stream is looked at
  /// only if it may lead to another host and the manager does not talk to other hosts.
  void ask_for_owner(const Stream& stream) noexcept;
  /// Keeps a stream that is not bound where it is, for good. Its reason is already set.
  void keep_on_kernel(Stream& stream) noexcept override;
  /// True if fragments wait for room or for a lock.
  bool has_deferred() const noexcept { return retry_count_.load(std::memory_order_relaxed) != 0; }
  /// Called when the process ends or is about to become another program. Waits, for a limited time,
  /// until the peers have what was sent to them, and takes leave of them. `ended`: all streams have
  /// ended, too, and none will move.
  void finish(bool ended) noexcept;
  /// Like close_stream(), for a stream that has not been joined to its other end. False if it has
  /// been joined; nothing is done then.
  bool close_undecided(Stream& stream) noexcept;
  /// Called when the descriptor is gone and the caller no longer uses the stream. `spare_anchor`: a
  /// duplicate of the anchor, which the engine closes when the stream's end mark is out; -1 if
  /// finish_locked() has reported that it is out. The caller closes the anchor itself afterwards.
  void close_stream(Stream& stream, int spare_anchor) noexcept;
  /// The number of threads inside a blocking connect(): their stream may be asked for before it
  /// exists.
  std::atomic<int> connecting{0};

  /// The directory in which connected streams are looked up; null while there is none.
  Directory* directory() const noexcept { return directory_.load(std::memory_order_seq_cst); }
  /// Sets the directory, which is never taken back. Called by the manager.
  void use_directory(Directory& directory) noexcept;
  void note_full_directory(Stream& stream) noexcept override;

  // --- progress; any thread, never blocks ---

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
  /// Makes the next poll of each lane look at all endpoints. Any thread.
  void want_all() noexcept;
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
  Lane& lane_of(const Connection& connection) noexcept {
    return recv_lock_.open()[connection.lane()];
  }
  /// The sums of what all lanes have counted. Any thread.
  struct Received {
    uint64_t polls = 0;     ///< polls of the receive completion queue
    uint64_t receives = 0;  ///< work requests
    uint64_t fragments = 0;
  };
  Received received() noexcept;
  /// Spills the bytes of slow readers that keep a peer from sending. Called by the progress thread.
  /// True if it should look again soon.
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
  /// The totals of all streams, including closed ones.
  StreamTotals totals();
  /// Streams whose descriptor is open. The caller holds recv_lock().
  std::vector<Stream*> open_streams_locked();
  /// The counts of connections that are gone.
  uint64_t closed_work_requests() const noexcept { return closed_work_requests_.get(); }
  uint64_t closed_fragments() const noexcept { return closed_fragments_.get(); }
  uint64_t switches_up() const noexcept { return switches_up_.get(); }
  uint64_t switches_down() const noexcept { return switches_down_.get(); }
  /// True if this device may have another connection. If not, `oldest` is the one that should make
  /// way for it, the least recently used; null if all are in use. Called by the manager.
  bool has_room(const Device& device, Connection*& oldest) noexcept;
  /// Takes a new connection into use. Called by the manager.
  void add_connection(std::unique_ptr<Connection> connection) noexcept;
  /// Gives up a connection that can no longer be used when nothing more can be learned from the
  /// peer. Delivers what has arrived. The streams that have not landed end with an error, except
  /// those of a process that has ended from which everything has arrived, and those that need
  /// nothing more of the engine: their anchor tells the rest. Called by the manager.
  void lose_connection(Connection& connection, const char* why, PeerProcess peer) noexcept;
  /// Gives up a connection that can no longer be used but whose peer may live
  /// (stream/recovery.hpp). Delivers what has arrived, closes the connection, and returns what the
  /// peer has to know about its streams. Called by the manager.
  std::vector<StreamReport> fail_connection(Connection& connection, const char* why) noexcept;
  /// Takes the peer's reports about a connection that has failed, and moves its streams to their
  /// anchors. Called by the manager.
  void land_streams(Connection& connection, std::span<const StreamReport> reports) noexcept;
  /// Called when the stream has lost its connection and may come back some time. The caller holds
  /// recv_lock().
  void expect_return_locked(Stream& stream) noexcept override;
  /// Called when the stream was refused. `begin`: for want of room, so it may try again even if
  /// this was its first attempt. False if it stays on the kernel for good.
  bool try_again_locked(Stream& stream, bool begin) noexcept;
  /// Looks after the streams that may come back. Called by the progress thread.
  void bring_back(uint64_t now) noexcept;
  void forget_suspect_locked(Stream& stream) noexcept override;
  /// Called by the progress thread when an anchor has news.
  void anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept;
  /// Called when a reader has found the end of the anchor and Stream::doubts_end() is true. The
  /// stream is signaled when more is known. Any thread.
  void question_end(Stream& stream) noexcept;
  /// True if there are streams whose anchor has ended without the engine's end mark.
  bool has_suspects() const noexcept { return suspect_count_.load(std::memory_order_relaxed) != 0; }
  void check_suspects(uint64_t now) noexcept;
  /// Looks after the anchors of streams that the engine carries. Called by the progress thread.
  void keep_anchors_alive(uint64_t now) noexcept;
  ProgressThread& progress_thread() noexcept { return *progress_thread_; }

 private:
  explicit Node(const config::Config& config);
  bool start_parts() noexcept;
  /// Makes room in all lists for every stream that exists, so that nothing that happens to a stream
  /// later needs memory. False when there is no memory.
  bool make_places() noexcept;
  /// Drains what had been posted before the call, and whatever else it finds on the way, but not
  /// everything that a fast peer goes on to post.
  void drain_locked(Lane& lane) noexcept;
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
  /// Called under the lock of any lane. Sets aside what needs the receive lock, unless the caller
  /// holds that.
  void run_retries_locked(bool by_lane) noexcept;
  void retry_closed_locked(Stream& stream, bool settled) noexcept;
  /// Tries to do what was set aside. The caller holds no lock.
  void take_up_set_aside() noexcept;
  /// True if something is deferred for a stream whose connection is not `excused`. Called under
  /// recv_lock_, which keeps connections alive.
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
  std::atomic<bool> is_over_{false};  // we have told the peers that we will say nothing more
  uint64_t keep_alive_at_ = 0;        // progress thread

  Attendance attendance_{*this};

  alignas(64) Mutex retry_lock_;
  std::atomic<size_t> retry_count_{0};
  std::vector<Stream*> retries_;
  std::vector<Stream*> set_aside_;  // listed streams whose work needs recv_lock_
  std::atomic<size_t> set_aside_count_{0};
  Mutex retrying_lock_;            // only tried, after a lane's lock
  std::vector<Stream*> retrying_;  // the streams being looked at now
  std::atomic<size_t> places_{0};  // how many streams have room in each of these lists
  std::vector<Stream*> suspects_;  // under recv_lock_
  std::atomic<size_t> suspect_count_{0};
  std::vector<Stream*> returning_;  // under recv_lock_
  std::atomic<size_t> returning_count_{0};
};

}  // namespace sidestep::engine

#pragma once
/// The streams of a node, from open() to the end: who searches for the other end, what happens when
/// an anchor ends or a connection fails, and when a stream comes back.
///
/// Any thread may call any of this, unless something else is said. Functions whose names end in
/// `_locked` need the receive lock (progress/lane.hpp); the others take it for a moment. None
/// waits for a peer, except finish(), and none throws, except totals() and open_locked().
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "config/config.hpp"
#include "engine/base/counters.hpp"
#include "engine/base/lock.hpp"
#include "engine/lifecycle/stream_totals.hpp"
#include "engine/progress/stream_upkeep.hpp"
#include "engine/stream/recovery.hpp"
#include "engine/stream/stream_services.hpp"
#include "engine/stream/stream_table.hpp"

namespace sidestep::engine {

class Connection;
class Directory;
class Lanes;
class ManagerJobs;
class Progress;

class NodeStreams final : public StreamServices, public StreamUpkeep {
 public:
  NodeStreams(const config::Config& config, ManagerJobs& jobs, Progress& progress)
      : config_(config), jobs_(jobs), progress_(progress) {}
  NodeStreams(const NodeStreams&) = delete;

  StreamTable& table() noexcept { return table_; }
  /// Called before the first stream is opened.
  void set_nid(uint16_t nid) noexcept { nid_ = nid; }

  // --- called by the owner of the descriptor

  /// Takes in a connected (or connecting) TCP socket. If `accepted` is false, the stream waits to
  /// be asked for. If `in_use` is false, Stream::note_reading() and note_writing() will report its
  /// use. Returns null when there is no room; the stream then stays on the kernel.
  Stream* open(const Tuple& tuple, int anchor, bool accepted, bool in_use = true) noexcept;
  /// Starts the search for the other end of an accepted stream. A connected stream is looked at
  /// only if it may lead to another host and the manager does not talk to other hosts.
  void ask_for_owner(const Stream& stream) noexcept;
  /// Keeps a stream that is not bound where it is, for good. Its reason is already set.
  void keep_on_kernel(Stream& stream) noexcept override;
  /// Like close(), for a stream that has not been joined to its other end. False if it has been
  /// joined; nothing is done then.
  bool close_undecided(Stream& stream) noexcept;
  /// Called when the descriptor is gone and the caller no longer uses the stream. `spare_anchor`: a
  /// duplicate of the anchor, which the engine closes when the stream's end mark is out; -1 if
  /// finish_locked() has reported that it is out. The caller closes the anchor itself afterwards.
  void close(Stream& stream, int spare_anchor) noexcept;
  /// Called when a reader has found the end of the anchor and Stream::doubts_end() is true. The
  /// stream is signaled when more is known.
  void question_end(Stream& stream) noexcept;
  /// The number of threads inside a blocking connect(): their stream may be asked for before it
  /// exists.
  std::atomic<int> connecting{0};

  // --- called by the manager

  /// The directory in which connected streams are looked up; null while there is none. Any thread.
  Directory* directory() const noexcept { return directory_.load(std::memory_order_seq_cst); }
  /// Sets the directory, which is never taken back.
  void use_directory(Directory& directory) noexcept;
  /// Called when the stream was refused. `begin`: for want of room, so it may try again even if
  /// this was its first attempt. False if it stays on the kernel for good.
  bool try_again_locked(Stream& stream, bool begin) noexcept;
  /// Gives up a connection that can no longer be used when nothing more can be learned from the
  /// peer. Delivers what has arrived. The streams that have not failed over end with an error,
  /// except those of a process that has ended from which everything has arrived, and those that
  /// need nothing more of the engine: their anchor tells the rest.
  void lose_connection(Connection& connection, const char* why, PeerProcess peer) noexcept;
  /// Gives up a connection that can no longer be used but whose peer may live
  /// (stream/recovery.hpp). Delivers what has arrived, closes the connection, and returns what the
  /// peer has to know about its streams.
  std::vector<StreamReport> fail_connection(Connection& connection, const char* why) noexcept;
  /// Takes the peer's reports about a connection that has failed, and moves its streams to their
  /// anchors.
  void fail_over_streams(Connection& connection, std::span<const StreamReport> reports) noexcept;

  // --- the end, and the counts

  struct Finish {
    bool tells_peers = false;  ///< some peer has to be told that nothing is under way
    bool said_all = false;     ///< everything that was sent has arrived
  };
  /// Called when the process ends or is about to become another program. Waits, for a limited time,
  /// until the peers have what was sent to them, and takes leave of those on this host. `ended`:
  /// all streams have ended, too, and none will move.
  Finish finish(bool ended) noexcept;
  /// The totals of all streams, including closed ones.
  StreamTotals totals();
  /// Streams whose descriptor is open.
  std::vector<Stream*> open_locked();
  uint64_t switches_up() const noexcept { return switches_up_.get(); }
  uint64_t switches_down() const noexcept { return switches_down_.get(); }

  // --- StreamServices

  NodeCounters& counters() noexcept override;
  uint16_t nid() const noexcept override { return nid_; }
  void retry_later(Stream& stream) noexcept override;
  void expect_moves() noexcept override;
  void watch_anchor(Stream& stream) noexcept override;
  void stream_ended(Stream& stream) noexcept override;
  void count_switch_up(Stream& stream) noexcept override;
  void count_switch_down(Stream& stream) noexcept override;
  void expect_reopening_locked(Stream& stream) noexcept override;
  void forget_suspect_locked(Stream& stream) noexcept override;
  void tell_of_entry(Stream& stream) noexcept override;
  void note_full_directory(Stream& stream) noexcept override;
  void look_for_waiters(Stream& stream) noexcept override;

  // --- StreamUpkeep

  void see_to_closed_locked(Stream& stream, bool settled) noexcept override;
  void anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept override;
  bool has_suspects() const noexcept override {
    return suspect_count_.load(std::memory_order_relaxed) != 0;
  }
  void check_suspects(uint64_t now) noexcept override;
  void bring_back(uint64_t now) noexcept override;
  void keep_anchors_alive(uint64_t now) noexcept override;

 private:
  Lanes& recv_lock() noexcept;
  /// Makes room in all lists for every stream that exists, so that nothing that happens to a stream
  /// later needs memory. False when there is no memory.
  bool make_places() noexcept;
  void count_closed(const Stream& stream) noexcept;
  void free_locked(Stream& stream) noexcept;
  void suspect_locked(Stream& stream) noexcept;
  void end_streams_locked(Connection& connection, PeerProcess peer) noexcept;

  const config::Config& config_;
  ManagerJobs& jobs_;
  Progress& progress_;
  uint16_t nid_ = 0;
  StreamTable table_;
  std::atomic<Directory*> directory_{nullptr};
  std::atomic<bool> is_over_{false};  // we have told the peers that we will say nothing more
  std::atomic<size_t> places_{0};     // how many streams have room in each list
  std::vector<Stream*> suspects_;     // under the receive lock
  std::atomic<size_t> suspect_count_{0};
  std::vector<Stream*> returning_;  // under the receive lock
  std::atomic<size_t> returning_count_{0};
  uint64_t keep_alive_at_ = 0;  // progress thread
  Mutex totals_lock_;
  StreamTotals closed_totals_;
  Counter switches_up_;
  Counter switches_down_;
};

}  // namespace sidestep::engine

#pragma once
/// A node: this process in the engine. Joins the parts: the streams, the progress, and the
/// connection manager.
///
/// The first stream starts the node, and nothing starts it earlier. A process has at most one. The
/// object is never destroyed while the process runs: application threads may be inside it until the
/// very end.
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "config/config.hpp"
#include "engine/base/counters.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

class Manager;

class Node {
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
  /// Called in the child of fork(): forgets everything that belongs to the parent. If
  /// `closes_descriptors` is false, the descriptors are the parent's and stay open.
  static void forget_after_fork(bool closes_descriptors = true) noexcept;
  Node(const Node&) = delete;

  uint16_t nid() const noexcept { return streams_.nid(); }
  /// The process that started the node. Children that share or have copied its memory have another
  /// pid.
  int pid() const noexcept { return pid_; }
  const config::Config& config() const noexcept { return config_; }
  NodeTotals counted() const noexcept { return counters_.sum(); }

  NodeStreams& streams() noexcept { return streams_; }
  Progress& progress() noexcept { return progress_; }
  Manager& manager() noexcept { return *manager_; }

  /// NodeStreams::open(), and null if is_barred().
  Stream* open_stream(const Tuple& tuple, int anchor, bool accepted, bool in_use = true) noexcept;
  /// Called when the process ends or is about to become another program. Waits, for a limited time,
  /// until the peers have what was sent to them, and takes leave of them. `ended`: all streams have
  /// ended, too, and none will move.
  void finish(bool ended) noexcept;
  /// Ends the engine's threads, after all streams have left. False if one of the threads still
  /// runs.
  bool end_threads() noexcept;

 private:
  explicit Node(const config::Config& config);
  ~Node();
  bool start_parts() noexcept;

  alignas(64) const config::Config config_;
  const int pid_ = static_cast<int>(getpid());
  CountersOfProcessors counters_;
  ManagerJobs jobs_{config_.ask_after};
  NodeStreams streams_{config_, jobs_, progress_};
  Progress progress_{config_, counters_, jobs_, streams_.table(), streams_};
  std::unique_ptr<Manager> manager_;
};

}  // namespace sidestep::engine

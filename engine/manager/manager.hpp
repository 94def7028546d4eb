#pragma once
/// The connection manager (Ibdxnet, section 7.1): a job queue and one dedicated thread that
/// discovers nodes, creates connections and closes them. No other thread ever does this; callers
/// post a job (control/manager_jobs.hpp) and carry on.
///
/// On one host, it talks to the other managers over control links (control_message.hpp). A link
/// stays open as long as both nodes live: its hang-up is how this node learns that the peer has
/// died. Between hosts, it talks by datagrams (discovery.hpp) and sends each request until it is
/// answered (remote_connector.hpp).
///
/// The manager itself waits, takes the jobs, and hands what it hears to its parts, each of which is
/// a class with a header of its own. It owns them, and they own the rest. Only what is said to be
/// for any thread may be called by another than the manager's.
#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/config.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/control/rate_limit.hpp"
#include "engine/manager/connection_room.hpp"
#include "engine/manager/directory_keeper.hpp"
#include "engine/manager/discovery_port.hpp"
#include "engine/manager/end_proofs.hpp"
#include "engine/manager/held_ends.hpp"
#include "engine/manager/host_watch.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/local_connector.hpp"
#include "engine/manager/path_prover.hpp"
#include "engine/manager/queries.hpp"
#include "engine/manager/remote_connector.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"
#include "engine/manager/unheard_streams.hpp"

namespace sidestep::engine {

class NodeStreams;
class Progress;

class Manager final : private LinkOwner, private ConnectionFailer, private DatagramOwner {
 public:
  /// `status` returns the status document of `node`; the manager's thread calls it. Throws
  /// std::bad_alloc.
  Manager(const config::Config& config, ManagerJobs& jobs, Progress& progress, NodeStreams& streams,
          std::string (*status)(void* node), void* node);
  Manager(const Manager&) = delete;

  /// Claims `preferred`, or any free NID if that is 0. Returns 0 if that is not possible (logged).
  uint16_t claim_nid(uint16_t preferred) noexcept;
  /// False if it can't (logged). Throws std::bad_alloc.
  bool start();

  // --- any thread
  /// Makes the manager's thread call `function`. Safe in a signal handler; one call at a time.
  void run_from_signal(void (*function)() noexcept) noexcept;
  /// Tells the peers on other hosts that this process is ending, and waits, for a time, until that
  /// is sent. With `said_all` (everything that this process had to say has arrived), also those on
  /// this host.
  void leave(bool said_all) noexcept;

 private:
  using Job = ManagerJobs::Job;

  static void* entry(void* self) noexcept;
  void run() noexcept;
  void end() noexcept;
  void hear(std::span<const epoll_event> events);
  void run_jobs();
  void clear_streams(uint64_t now);

  void send_status(Link& link);
  int next_timeout(uint64_t now) const;
  void take_leave(bool said_all);
  /// True on the manager's own thread, which then runs what run_from_signal() was given.
  bool runs_here() const noexcept;

  // --- what its parts tell it
  void on_message(Link& link, Received& received) override;
  void on_link_end(const Link& link, const char* why, PeerProcess peer, bool was_named) override;
  void on_datagram(const DiscoveryMessage& message, const sockaddr_in6& from) override;
  bool deals_with(uint64_t incarnation) const noexcept override {
    return remote_.deals_with(incarnation);
  }
  void fail_connection(Connection& connection, const char* why) override;

  ThisNode node_;
  std::string (*const status_)(void* node);
  void* const status_node_;
  Links links_;
  UndecidedStreams undecided_;
  ConnectionRoom room_;
  LocalConnector local_;
  RateLimit datagram_limit_;  // of the datagrams that prove nothing
  PathProver paths_;
  EndProofs proofs_;
  DiscoveryPort port_;
  HostWatch hosts_;
  RemoteConnector remote_;
  HeldEnds ends_;
  // In this order: the first two refer to the later ones, and each of the later ones knows the one
  // before it by a base class, which has to exist by then.
  Queries queries_;
  UnheardStreams unheard_;
  DirectoryKeeper directory_;
  std::atomic<uint32_t> leaves_asked_{0};
  std::atomic<uint32_t> leaves_taken_{0};

  std::atomic<void (*)() noexcept> from_signal_{nullptr};
  std::vector<std::pair<uint32_t, uint32_t>> uncleared_;  // id, generation
  uint64_t look_at_ = 0;                                  // clear_streams() waits until then
  std::atomic<long> thread_{0};
};

}  // namespace sidestep::engine

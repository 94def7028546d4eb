#pragma once
/// The connection manager (Ibdxnet, section 7.1): a job queue and one dedicated thread that
/// discovers nodes, creates connections and closes them. No other thread ever does this; callers
/// post a job (control/manager_jobs.hpp) and carry on.
///
/// On one host, it talks to the other managers over control links (control_message.hpp). A link
/// stays open as long as both nodes live: its hang-up is how this node learns that the peer has
/// died. Between hosts, it talks by datagrams (discovery.hpp) and sends each request until it is
/// answered (remote_connector.hpp).
#include <sys/epoll.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/connection/connection.hpp"
#include "engine/control/directory.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/device/half_open.hpp"
#include "engine/devices/factory.hpp"
#include "engine/manager/connection_room.hpp"
#include "engine/manager/directory_keeper.hpp"
#include "engine/manager/discovery_port.hpp"
#include "engine/manager/end_proofs.hpp"
#include "engine/manager/held_ends.hpp"
#include "engine/manager/host_watch.hpp"
#include "engine/manager/links.hpp"
#include "engine/manager/local_connector.hpp"
#include "engine/manager/path_prover.hpp"
#include "engine/manager/remote_connector.hpp"
#include "engine/manager/this_node.hpp"
#include "engine/manager/undecided_streams.hpp"
#include "engine/manager/unheard_streams.hpp"
#include "engine/stream/recovery.hpp"

namespace sidestep::engine {

class NodeStreams;
class Progress;
class Stream;

class Manager final : private LinkOwner,
                      private ConnectionFailer,
                      private DatagramOwner,
                      private Asker {
 public:
  /// `status` returns the status document; the manager's thread calls it.
  Manager(const config::Config& config, ManagerJobs& jobs, Progress& progress, NodeStreams& streams,
          std::string (*status)()) noexcept;
  Manager(const Manager&) = delete;

  /// Claims `preferred`, or any free NID if that is 0. Returns 0 if that is not possible (logged).
  uint16_t claim_nid(uint16_t preferred) noexcept;
  bool start() noexcept;

  // --- any thread
  /// Makes the manager's thread call `function`. Safe in a signal handler; one call at a time.
  void run_from_signal(void (*function)() noexcept) noexcept;
  /// Tells the peers on other hosts that this process is ending, and waits, for a time, until that
  /// is sent. With `said_all` (everything that this process had to say has arrived), also those on
  /// this host.
  void leave(bool said_all) noexcept;

 private:
  using Job = ManagerJobs::Job;
  using Young = YoungStreams::Young;
  /// An outstanding question: who holds this end? It is asked for a stream of this node, or on
  /// behalf of another host, until one node says yes or all have said no. No node is asked again
  /// while any of them has not answered: an answer to the earlier question would count for both.
  struct Query {
    Tuple wanted;         // the connection as the owner of its other end sees it
    uint32_t stream = 0;  // 0: asked for another host
    uint32_t generation = 0;
    uint32_t nonce = 0;             // of the question to another host; random
    sockaddr_in6 asker{};           // where the other host's question came from
    DiscoveryMessage question;      // that question itself
    bool remote = false;            // the owner is on another host: asked by UDP
    bool leads_away = false;        // the owner is in another network namespace or on another host
    std::vector<uint16_t> waiting;  // nodes of this host that have not answered; or kAbroad
    unsigned looks = 0;             // looks in the directory that found nobody
    size_t found = 0;               // nodes that the last of these looks found there
    unsigned tries = 0;
    bool later = false;
    bool unproven = false;  // not proven: that some node holds it, or that this one holds its end
    uint64_t retry_at = 0;  // when to ask again, or to stop waiting
  };
  /// Not a NID: stands for the node that hands out another user's directory.
  static constexpr uint16_t kAbroad = 0;
  // How long to wait for another host's answer. The host is asked again after 50, 150, 350, 750,
  // 1550 and 3150 ms, and given up after 4.25 s. In a network that loses a quarter of all
  // datagrams, that happens to one stream in 300.
  static constexpr std::array<uint64_t, 7> kHostWaits{50, 100, 200, 400, 800, 1600, 1100};  // ms
  static constexpr unsigned kHostTries = kHostWaits.size();

  static void* entry(void* self) noexcept;
  void run() noexcept;
  void end() noexcept;
  void hear(std::span<const epoll_event> events);
  void run_jobs();
  void clear_streams(uint64_t now);

  void on_message(Link& link, Received& received) override;
  void on_link_end(const Link& link, const char* why, PeerProcess peer, bool was_named) override;
  void send_status(Link& link);

  // trust.cpp
  /// Sends the question to the node that hands out the directory of the user who owns the other
  /// end, if that user is trusted.
  void ask_abroad(uint32_t id);
  Link* link_abroad(uid_t user);
  void lose_abroad(uid_t user);
  void answer_find(Link& link, const ControlMessage& message);
  void on_found(const Link& link, const ControlMessage& message);

  // query.cpp
  void ask_again(const UnheardStream& who) override {
    start_query(who.stream, who.generation, who.looks);
  }
  void start_query(uint32_t stream, uint32_t generation, unsigned looks = 0);
  void ask_for_grown(uint64_t now);
  void list_grown(uint64_t now);
  /// Returns the nodes that may hold the other end. Sets `query.later` if some may be missing.
  std::vector<uint16_t> nodes_to_ask(Query& query);
  uint32_t add_query(const Query& query);
  void ask_nodes(uint32_t id);
  void ask_other_host(Query query);
  static RemoteAsker asker_of(const Query& query) noexcept;
  void ask_node(uint32_t id, uint16_t nid, const UndecidedEnd& asked_for, bool with_token);
  void on_owner(Link& link, const Received& received);
  /// Called when all nodes have answered, none with yes: ends the question, or asks it again.
  void all_have_answered(uint32_t id);
  /// Gives up on the node's outstanding answers, which will not come.
  void forget_answers_of(uint16_t nid);
  void finish_query(uint32_t id, OwnerAnswer answer, const EndOwner& owner);
  /// Called when nodes of this host have not answered yet.
  void wait_on(uint32_t id, uint64_t now);
  void retry_queries(uint64_t now);
  int next_timeout(uint64_t now) const;

  // query_hosts.cpp
  void ask_host(uint32_t id);
  void ask_held(uint64_t now);
  void on_datagram(const DiscoveryMessage& message, const sockaddr_in6& from) override;
  bool deals_with(uint64_t incarnation) const noexcept override {
    return remote_.deals_with(incarnation);
  }
  void on_remote_question(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_remote_owner(const DiscoveryMessage& message, const sockaddr_in6& from);

  void take_leave(bool said_all);
  /// True on the manager's own thread, which then runs what run_from_signal() was given.
  bool runs_here() const noexcept;
  void bind_when_connected(uint32_t peer, const StreamPair& pair);
  void fail_connection(Connection& connection, const char* why) override;

  ThisNode node_;
  std::string (*const status_)();
  std::map<uid_t, int> links_abroad_;        // to the node that hands out that user's directory
  std::map<uid_t, uint64_t> silent_abroad_;  // when such a node may be asked again
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
  DirectoryKeeper directory_;
  UnheardStreams unheard_;
  std::unordered_map<uint32_t, Query> queries_;  // by a number of their own
  uint32_t last_query_ = 0;
  /// Questions from other hosts for which nobody was found, kept as UnheardStreams keeps its own. A
  /// host asks only for a while.
  static constexpr std::array<unsigned, 2> kLooksForHost{20, 500};
  std::array<std::deque<Query>, kLooksForHost.size()> held_;
  std::atomic<uint32_t> leaves_asked_{0};
  std::atomic<uint32_t> leaves_taken_{0};

  std::atomic<void (*)() noexcept> from_signal_{nullptr};
  std::vector<std::pair<uint32_t, uint32_t>> uncleared_;  // id, generation
  uint64_t look_at_ = 0;                                  // clear_streams() waits until then
  std::atomic<long> thread_{0};
};

}  // namespace sidestep::engine

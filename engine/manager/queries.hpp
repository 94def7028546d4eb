#pragma once
/// Who holds the other end of a stream? The questions of this node about the streams that it has
/// accepted, and those that it passes on to the nodes of this host for another host.
///
/// queries.cpp asks the nodes of this host, queries_hosts.cpp other hosts and for them, and
/// queries_trust.cpp the nodes of other users that this one trusts (SIDESTEP_TRUST). Answers to the
/// questions of others are found by HeldEnds.
///
/// The manager's thread makes all calls. What is kept here names streams of this node, which may
/// end at any time. Functions that allocate may throw std::bad_alloc.
#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

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

namespace sidestep::engine {

/// What a question is asked with, and where the answer goes.
struct QueryTools {
  ThisNode& node;
  Links& links;
  UndecidedStreams& undecided;
  PathProver& paths;
  EndProofs& proofs;
  DiscoveryPort& port;
  HostWatch& hosts;
  LocalConnector& local;
  RemoteConnector& remote;
  HeldEnds& ends;
  const DirectoryKeeper& directory;
  UnheardStreams& unheard;
};

class Queries final : public Asker {
 public:
  explicit Queries(const QueryTools& tools)
      : node_(tools.node),
        links_(tools.links),
        undecided_(tools.undecided),
        paths_(tools.paths),
        proofs_(tools.proofs),
        port_(tools.port),
        hosts_(tools.hosts),
        local_(tools.local),
        remote_(tools.remote),
        ends_(tools.ends),
        directory_(tools.directory),
        unheard_(tools.unheard) {}
  Queries(const Queries&) = delete;

  /// Begins to ask for the stream. `looks`: how many looks in the directory have found nobody.
  void start(uint32_t stream, uint32_t generation, unsigned looks = 0);
  void ask_again(const UnheardStream& who) override {
    start(who.stream, who.generation, who.looks);
  }
  /// Begins to ask for the streams that have come of age.
  void ask_for_grown(uint64_t now);
  /// Asks again for other hosts whose questions were held because nobody was found.
  void ask_held(uint64_t now);
  /// Asks again where it is time, and gives up what has waited for too long.
  void retry(uint64_t now);
  /// When to call that, or ask_held(), next; 0: not at all.
  uint64_t next_at() const noexcept;

  // --- over links

  void on_owner(Link& link, const Received& received);
  /// Called first when a link has ended.
  void on_link_end(const Link& link);
  /// Gives up on the node's outstanding answers, which will not come.
  void forget_answers_of(uint16_t nid);
  void answer_find(Link& link, const control::Find& question);
  void on_found(const Link& link, const control::Found& answer);

  // --- between hosts

  void on_remote_question(const DiscoveryMessage& message, const sockaddr_in6& from);
  void on_remote_owner(const DiscoveryMessage& message, const sockaddr_in6& from);

 private:
  /// An outstanding question: who holds this end? It is asked for a stream of this node, or on
  /// behalf of another host, until one node says yes or all have said no. No node is asked again
  /// while any of them has not answered: an answer to the earlier question would count for both.
  struct Query {
    Tuple wanted;         // the connection as the owner of its other end sees it
    uint32_t stream = 0;  // 0: asked for another host
    uint32_t generation = 0;
    uint32_t nonce = 0;             // of the question to another host; random
    sockaddr_in6 asker{};           // where the other host's question came from
    DiscoveryHeader question;       // how that question began
    EndCounts counts;               // of that host's end
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

  // queries.cpp
  /// Returns the nodes that may hold the other end. Sets `query.later` if some may be missing.
  std::vector<uint16_t> nodes_to_ask(Query& query);
  uint32_t add(const Query& query);
  void ask_nodes(uint32_t id);
  void ask_other_host(Query query);
  static control::RemoteAsker asker_of(const Query& query) noexcept;
  void ask_node(uint32_t id, uint16_t nid, const UndecidedEnd& asked_for, bool with_token);
  /// Called when all nodes have answered, none with yes: ends the question, or asks it again.
  void all_have_answered(uint32_t id);
  void finish(uint32_t id, OwnerAnswer answer, const EndOwner& owner);
  /// Called when nodes of this host have not answered yet.
  void wait_on(uint32_t id, uint64_t now);
  void bind_when_connected(uint32_t peer, const StreamPair& pair);

  // queries_hosts.cpp
  void ask_host(uint32_t id);

  // queries_trust.cpp
  /// Sends the question to the node that hands out the directory of the user who owns the other
  /// end, if that user is trusted.
  void ask_abroad(uint32_t id);
  Link* link_abroad(uid_t user);
  void lose_abroad(uid_t user);

  ThisNode& node_;
  Links& links_;
  UndecidedStreams& undecided_;
  PathProver& paths_;
  EndProofs& proofs_;
  DiscoveryPort& port_;
  HostWatch& hosts_;
  LocalConnector& local_;
  RemoteConnector& remote_;
  HeldEnds& ends_;
  const DirectoryKeeper& directory_;
  UnheardStreams& unheard_;
  std::unordered_map<uint32_t, Query> queries_;  // by a number of their own
  uint32_t last_query_ = 0;
  /// Questions from other hosts for which nobody was found, kept as UnheardStreams keeps streams. A
  /// host asks only for a while.
  static constexpr std::array<unsigned, 2> kLooksForHost{20, 500};
  std::array<std::deque<Query>, kLooksForHost.size()> held_;
  std::map<uid_t, int> links_abroad_;        // to the node that hands out that user's directory
  std::map<uid_t, uint64_t> silent_abroad_;  // when such a node may be asked again
};

}  // namespace sidestep::engine

#include "engine/manager/queries.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
// A thread inside connect() may have to wait long for a processor, so these span 8 s in all. After
// that, the question is asked when there has been traffic (stream/reopening.cpp).
constexpr unsigned kMaxTries = 40;
// Nodes of this host answer in microseconds, or in milliseconds on a crowded machine. A node that
// is opening a device, or is stopped, answers when that is over. The stream loses nothing
// meanwhile, so this node waits for as long as the stream exists, and checks at this interval that
// it does. A question from another host is no longer worth an answer once that host has given up.
constexpr uint64_t kLocalWait = 30'000 * kMillisecond;
constexpr uint64_t kLocalWaitForHost = 3'000 * kMillisecond;
constexpr size_t kMostHeld = 1'000;
}  // namespace

void Queries::ask_for_grown(uint64_t now) {
  // Once a stream is due, those that are nearly due are taken as well: with many short streams,
  // this thread wakes up four times per SIDESTEP_ASK_AFTER, not once for each stream.
  const uint64_t soon = now + node_.jobs.soon();
  for (uint64_t limit = now;
       const std::optional<YoungStreams::Young> one = node_.jobs.unasked().take(limit);
       limit = soon)
    start(one->stream, one->generation);
}

uint32_t Queries::add(const Query& query) {
  do ++last_query_;
  while (last_query_ == 0 || queries_.count(last_query_) != 0);
  queries_[last_query_] = query;
  return last_query_;
}

void Queries::start(uint32_t stream_id, uint32_t generation, unsigned looks) {
  Query query;
  query.stream = stream_id;
  query.generation = generation;
  query.looks = looks;
  bool accepted = false;
  {
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    const Stream* const stream = node_.streams.table().find(stream_id, generation);
    if (!UndecidedStream::is_one(stream)) return;
    query.wanted = stream->tuple().mirrored();
    accepted = stream->is_accepted();
  }
  query.remote = !node_.has_both_ends(query.wanted.mirrored());
  query.leads_away = query.remote && node_.names.are_files();
  if (query.remote && !query.leads_away && !node_.jobs.talks_to_other_hosts())
    return undecided_.stay_on_kernel(stream_id, generation,
                                     port_.lacks_key() ? Reason::no_key : Reason::bad_key);
  if (!accepted) return;  // the node that has accepted it asks
  // Inside a host, ask_nodes() checks this.
  if (query.remote && undecided_.find(stream_id, generation).anchor < 0) return;
  node_.progress.attendance().expect_moves();
  if (!query.remote || query.leads_away) {
    query.remote = false;
    return ask_nodes(add(query));
  }
  ask_other_host(query);
}

void Queries::ask_other_host(Query query) {
  const uint32_t stream_id = query.stream;
  const uint32_t generation = query.generation;
  query.remote = true;
  query.tries = 0;
  if (hosts_.is_silent(query.wanted.local.ip, now_ns()))
    return undecided_.stay_on_kernel(stream_id, generation, Reason::silent_host);
  port_.open(true);
  ask_host(add(query));
}

std::vector<uint16_t> Queries::nodes_to_ask(Query& query) {
  std::vector<uint16_t> nodes;
  if (const Directory* const directory = node_.streams.directory(); directory != nullptr) {
    // Read before the look: a node enters what it holds before it joins.
    if (query.stream != 0 && query.looks >= UnheardStreams::kLooks.size())
      nodes = directory_.nodes_that_have_not_joined();
    std::array<uint16_t, Directory::kWindow> found;
    query.found = directory->find(Directory::End::connecting, query.wanted, found);
    for (const uint16_t nid : std::span(found).first(query.found))
      if (std::find(nodes.begin(), nodes.end(), nid) == nodes.end()) nodes.push_back(nid);
  } else if (!directory_.asks_everybody()) {
    query.later = true;  // the directory is being asked for, or made
  } else if (auto names = node_.names.list()) {
    // A node binds its name before its first connect(), so the list that is read now is complete.
    nodes = std::move(*names);
  } else {
    query.later = true;
  }
  std::erase(nodes, node_.nid);
  return nodes;
}

void Queries::ask_nodes(uint32_t id) {
  Query& query = queries_[id];
  ++query.tries;
  query.later = false;
  const bool was_unproven = std::exchange(query.unproven, false);
  query.retry_at = 0;
  const UndecidedEnd asked_for =
      query.stream != 0 ? undecided_.find(query.stream, query.generation) : UndecidedEnd{};
  if (query.stream != 0 && asked_for.anchor < 0) {  // it was closed meanwhile, or has ended
    queries_.erase(id);
    return;
  }

  // This very process may hold the end.
  EndOwner own;
  const uint16_t asker = query.stream != 0 ? node_.nid : 0;
  const OwnerAnswer here =
      ends_.look_up(query.wanted, asker, asker_of(query), query.generation, query.counts, own);
  if (here == OwnerAnswer::yes) return finish(id, here, own);
  if (here == OwnerAnswer::unproven) return finish(id, OwnerAnswer::no, {});
  query.later = here == OwnerAnswer::later;

  for (const uint16_t nid : nodes_to_ask(query)) ask_node(id, nid, asked_for, was_unproven);
  if (query.waiting.empty() && !query.later) ask_abroad(id);
  if (query.waiting.empty()) return all_have_answered(id);
  query.retry_at = now_ns() + (query.stream != 0 ? kLocalWait : kLocalWaitForHost);
}

void Queries::ask_node(uint32_t id, uint16_t nid, const UndecidedEnd& asked_for, bool with_token) {
  Query& query = queries_[id];
  control::WhoHas question;
  question.asker = asker_of(query);
  question.query = id;
  question.generation = query.generation;
  question.tuple = query.wanted;
  if (query.leads_away) question.path_port = paths_.open_port();
  question.counts =
      query.stream != 0 ? counts_of(asked_for.anchor, asked_for.accepted) : query.counts;
  int error = 0;
  Link* link = links_.to(nid, error);
  if (link != nullptr) error = proofs_.send(*link, question, asked_for.anchor, with_token);
  // A node that was killed has left its words behind.
  if (error == -ECONNREFUSED && node_.streams.directory() != nullptr)
    node_.streams.directory()->leave(Directory::End::connecting, query.wanted, nid);
  // The node is busy, or it has ended and another may have its name.
  if (error == -EAGAIN || error == -EPIPE || error == -ECONNRESET) query.later = true;
  if (link == nullptr || error < 0) return;
  node_.progress.counters().queries_sent.add();
  query.waiting.push_back(nid);
}

control::RemoteAsker Queries::asker_of(const Query& query) noexcept {
  control::RemoteAsker asker;
  if (query.stream != 0) return asker;
  asker.incarnation = query.question.from;
  asker.nid = query.question.from_nid;
  std::memcpy(asker.ip.data(), &query.asker.sin6_addr, asker.ip.size());
  return asker;
}

void Queries::all_have_answered(uint32_t id) {
  Query& query = queries_[id];
  if (!query.later) {
    // The thread that has connected the stream may not have entered it yet.
    if (query.stream == 0 && query.looks < held_.size() && held_[query.looks].size() < kMostHeld) {
      query.retry_at = now_ns() + kLooksForHost[query.looks] * kMillisecond;
      held_[query.looks].push_back(std::move(query));
      queries_.erase(id);
      return;
    }
    // A node that was asked may have the directory, and is then to be looked for there.
    if (query.stream != 0 && node_.streams.directory() == nullptr &&
        query.looks < UnheardStreams::kLooks.size()) {
      query.retry_at = now_ns() + UnheardStreams::kLooks[query.looks++] * kMillisecond;
      return;
    }
    if (query.stream != 0) {
      const Query asked = query;
      queries_.erase(id);
      // Not at once: a node that connected in another container may not have entered itself yet.
      if (asked.leads_away && node_.jobs.talks_to_other_hosts() && asked.looks != 0)
        return ask_other_host(asked);
      if (!unheard_.look_later(asked.wanted, {asked.stream, asked.generation, asked.looks},
                               asked.found))
        undecided_.stay_on_kernel(asked.stream, asked.generation,
                                  proofs_.reason_for_nobody(asked.wanted));
      return;
    }
  }
  if (!query.later || query.tries >= kMaxTries)
    return finish(id, query.later ? OwnerAnswer::later : OwnerAnswer::no, {});
  query.retry_at = now_ns() + (kMillisecond << std::min(query.tries, 8U));
}

void Queries::finish(uint32_t id, OwnerAnswer answer, const EndOwner& owner) {
  const Query query = queries_[id];
  queries_.erase(id);
  if (query.stream == 0) {
    DiscoveryHeader header = query.question.of_answer();
    header.from = owner.incarnation != 0 ? owner.incarnation : node_.incarnation;
    header.from_nid = owner.nid;
    datagram::Owner said;
    said.tuple = query.wanted;
    said.answer = static_cast<uint32_t>(answer);
    said.stream = owner.stream;
    said.generation = owner.generation;
    said.counts = owner.counts;
    port_.answer(query.asker, query.wanted.local.ip, {header, said});
    if (owner.incarnation == node_.incarnation)
      node_.device_for_others();  // the asker opens its own meanwhile
  } else if (answer == OwnerAnswer::yes) {
    bind_when_connected(owner.peer,
                        {query.stream, query.generation, owner.stream, owner.generation});
  } else if (query.leads_away && answer == OwnerAnswer::later) {
    undecided_.stay_on_kernel(query.stream, query.generation, Reason::no_path);
  } else if (query.unproven) {
    undecided_.stay_on_kernel(query.stream, query.generation, Reason::unproven);
  } else if (answer == OwnerAnswer::later) {
    undecided_.stay_on_kernel(query.stream, query.generation, Reason::node_busy, Until::later);
  } else {
    undecided_.stay_on_kernel(query.stream, query.generation, Reason::nobody);
  }
}

void Queries::on_owner(Link& link, const Received& received) {
  const uint16_t nid = link.nid;
  const auto said = received.message.as<control::Owner>();
  const auto found = queries_.find(said.query);
  if (found == queries_.end() || found->second.remote ||
      found->second.generation != said.generation)
    return;
  Query& query = found->second;
  if (std::erase(query.waiting, nid) == 0) return;
  auto answer = static_cast<OwnerAnswer>(said.answer);
  if (answer == OwnerAnswer::yes && query.stream != 0) {
    const UndecidedEnd mine = undecided_.find(query.stream, query.generation);
    if (mine.anchor < 0) {
      queries_.erase(found);
      return;
    }
    answer = proofs_.check(link, {said.held_at, received.fds[0]}, query.wanted, mine.anchor);
    if (answer == OwnerAnswer::yes && !may_fit(said.counts, mine.anchor)) {
      proofs_.note_misfit();
      answer = OwnerAnswer::unproven;
    }
  }
  if (answer == OwnerAnswer::yes)
    return finish(found->first, answer,
                  {nid, nid, said.incarnation, said.stream, said.stream_generation, said.counts});
  // The ends will not fit later either, and the other host can do no more to prove that they do.
  if (answer == OwnerAnswer::unproven && query.stream == 0)
    return finish(found->first, OwnerAnswer::no, {});
  if (answer == OwnerAnswer::unproven) query.unproven = true;
  if (answer != OwnerAnswer::no) query.later = true;
  if (query.waiting.empty()) all_have_answered(found->first);
}

void Queries::forget_answers_of(uint16_t nid) {
  std::vector<uint32_t> over;
  for (auto& [id, query] : queries_) {
    if (std::erase(query.waiting, nid) == 0) continue;
    query.later = true;  // another process may have its name
    if (query.waiting.empty()) over.push_back(id);
  }
  for (const uint32_t id : over) all_have_answered(id);
}

void Queries::wait_on(uint32_t id, uint64_t now) {
  Query& query = queries_[id];
  const bool is_wanted = undecided_.has(query.stream, query.generation);
  query.retry_at = now + kLocalWait;
  if (!is_wanted) queries_.erase(id);
}

void Queries::retry(uint64_t now) {
  std::vector<uint32_t> due;
  for (const auto& [id, query] : queries_)
    if (query.retry_at != 0 && query.retry_at <= now) due.push_back(id);
  for (const uint32_t id : due) {
    const Query& query = queries_[id];
    if (!query.remote && !query.waiting.empty() && query.stream == 0) {
      finish(id, OwnerAnswer::no, {});
    } else if (!query.remote && !query.waiting.empty()) {
      wait_on(id, now);
    } else if (!query.remote) {
      ask_nodes(id);
    } else if (query.tries < kHostTries) {
      ask_host(id);
    } else {
      hosts_.note_silence(query.wanted.local.ip, now);
      undecided_.stay_on_kernel(query.stream, query.generation, Reason::silent_host);
      queries_.erase(id);
    }
  }
}

uint64_t Queries::next_at() const noexcept {
  uint64_t next = 0;
  for (const std::deque<Query>& held : held_)
    if (!held.empty() && (next == 0 || held.front().retry_at < next)) next = held.front().retry_at;
  for (const auto& [id, query] : queries_)
    if (query.retry_at != 0 && (next == 0 || query.retry_at < next)) next = query.retry_at;
  return next;
}

void Queries::bind_when_connected(uint32_t peer, const StreamPair& pair) {
  if (peer < PeerName::kRemotePeers)
    return local_.bind_when_connected(static_cast<uint16_t>(peer), pair);
  remote_.bind_when_connected(peer, pair);
}

}  // namespace sidestep::engine

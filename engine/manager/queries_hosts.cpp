// Finding the other end of a stream on another host, and for one: questions and answers by
// datagrams (control/discovery.hpp).
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/random.hpp"
#include "engine/manager/queries.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr size_t kMaxQueries = 100'000;  // limits the memory that a flood of questions costs
}  // namespace

void Queries::ask_host(uint32_t id) {
  Query& query = queries_[id];
  const UndecidedEnd mine = undecided_.find(query.stream, query.generation);
  if (mine.anchor < 0) {  // it was closed meanwhile, or has ended
    queries_.erase(id);
    return;
  }
  query.retry_at = now_ns() + kHostWaits[query.tries++] * kMillisecond;
  // An answer belongs to this question if it has the nonce, which only those who have seen it can
  // know.
  if (query.nonce == 0) query.nonce = static_cast<uint32_t>(random_number() | 1);
  DiscoveryHeader header;
  header.question = uint64_t{query.nonce} << 32 | id;
  header.from = node_.incarnation;
  header.from_nid = node_.nid;
  datagram::WhoHas question;
  question.generation = query.generation;
  question.tuple = query.wanted;
  question.counts = counts_of(mine.anchor, mine.accepted);
  port_.ask(query.wanted.local, query.wanted.remote.ip, {header, question}, query.tries);
  node_.progress.counters().queries_sent.add();
}

void Queries::on_remote_question(const DiscoveryMessage& message, const sockaddr_in6& from) {
  if (queries_.size() >= kMaxQueries) return;
  const auto question = message.as<datagram::WhoHas>();
  // A node that asks from anywhere but the address of its end of the connection has no such end.
  if (std::memcmp(&from.sin6_addr, question.tuple.remote.ip.data(), 16) != 0)
    return node_.progress.counters().unproven.add();
  Query query;
  query.wanted = question.tuple;
  query.asker = from;
  query.question = message.header;
  query.counts = question.counts;
  query.generation = question.generation;
  node_.progress.counters().queries_answered.add();
  ask_nodes(add(query));
}

void Queries::ask_held(uint64_t now) {
  for (unsigned looks = 0; looks < held_.size(); ++looks) {
    const uint64_t soon = now + kLooksForHost[looks] * kMillisecond / 4;  // as in ask_for_grown()
    for (uint64_t limit = now; !held_[looks].empty() && held_[looks].front().retry_at <= limit;
         limit = soon) {
      Query query = std::move(held_[looks].front());
      held_[looks].pop_front();
      ++query.looks;
      ask_nodes(add(query));
    }
  }
}

void Queries::on_remote_owner(const DiscoveryMessage& message, const sockaddr_in6& from) {
  const auto said = message.as<datagram::Owner>();
  const auto found = queries_.find(static_cast<uint32_t>(message.header.question));
  if (found == queries_.end() || !found->second.remote ||
      found->second.nonce != message.header.question >> 32 || found->second.wanted != said.tuple ||
      std::memcmp(&from.sin6_addr, said.tuple.local.ip.data(), 16) != 0)
    return;
  const auto answer = static_cast<OwnerAnswer>(said.answer);
  if (answer == OwnerAnswer::later && found->second.tries < kHostTries) {
    found->second.retry_at = now_ns() + kMillisecond * 10;
    return;
  }
  EndOwner owner;
  if (answer == OwnerAnswer::yes) {
    const UndecidedEnd mine = undecided_.find(found->second.stream, found->second.generation);
    if (mine.anchor < 0) {
      queries_.erase(found);
      return;
    }
    if (!may_fit(said.counts, mine.anchor)) {
      proofs_.note_misfit();
      found->second.unproven = true;
      return finish(found->first, OwnerAnswer::no, {});
    }
    const DiscoveryHeader& header = message.header;
    owner = {remote_.meet(header.from, header.from_nid, said.tuple.local.ip, said.tuple.remote.ip),
             header.from_nid,
             header.from,
             said.stream,
             said.generation,
             said.counts};
  }
  finish(found->first, answer, owner);
}

}  // namespace sidestep::engine

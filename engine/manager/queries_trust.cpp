// Streams between processes of different users that trust each other (SIDESTEP_TRUST).
//
// The kernel tells which user owns the other end of a connection (sock_diag(7)). Anybody who has a
// user's directory can write to it, so it is not handed to other users. Instead, the node that
// hands it out looks there for them, and tells them which nodes are entered. Those nodes are asked
// like all others, and prove what they hold.
#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/manager/queries.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kSilence = 1'000'000'000;
}  // namespace

void Queries::ask_abroad(uint32_t id) {
  Query& query = queries_[id];
  if (node_.trust.trusts_nobody() || query.stream == 0) return;
  const std::optional<uid_t> user = proofs_.user_of(query.wanted);
  if (!user || *user == getuid()) return;
  Link* const link = link_abroad(*user);
  if (link == nullptr) return;
  if (links_.send(*link, control::Find{query.wanted, id, query.generation}) == 0)
    query.waiting.push_back(kAbroad);
}

Link* Queries::link_abroad(uid_t user) {
  const auto known = links_abroad_.find(user);
  if (known != links_abroad_.end()) return &links_.at(known->second);
  if (const auto silent = silent_abroad_.find(user);
      silent != silent_abroad_.end() && now_ns() < silent->second)
    return nullptr;
  for (unsigned seat = 0; seat < NodeNames::kDirectorySeats; ++seat) {
    const int fd = node_.names.open_link_to_directory(user, seat);
    if (fd < 0) return nullptr;
    const LinkPeer peer = peer_of(fd, node_.trust);
    if (peer.pid >= 0 && peer.uid == user) {
      links_abroad_[user] = fd;
      return &links_.add(fd, 0, peer);
    }
    private_fd_close(fd);
    if (peer.uid == user) return nullptr;  // it is not trusted
  }
  return nullptr;
}

void Queries::on_link_end(const Link& link) {
  if (const auto abroad = links_abroad_.find(link.uid);
      abroad != links_abroad_.end() && abroad->second == link.fd)
    lose_abroad(link.uid);
}

void Queries::lose_abroad(uid_t user) {
  links_abroad_.erase(user);
  // As a rule, the node does not trust this user; otherwise another one soon takes its place.
  silent_abroad_[user] = now_ns() + kSilence;
  std::vector<uint32_t> over;
  for (auto& [id, query] : queries_)
    if (std::erase(query.waiting, kAbroad) != 0 && query.waiting.empty()) over.push_back(id);
  for (const uint32_t id : over) all_have_answered(id);
}

void Queries::answer_find(Link& link, const control::Find& question) {
  control::Found reply;
  reply.query = question.query;
  reply.generation = question.generation;
  std::array<uint16_t, Directory::kWindow> nids;
  const Directory* const directory = node_.streams.directory();
  const size_t count =
      directory != nullptr ? directory->find(Directory::End::connecting, question.tuple, nids) : 0;
  std::copy_n(nids.begin(), std::min(count, reply.nids.size()), reply.nids.begin());
  links_.send(link, reply);
}

void Queries::on_found(const Link& link, const control::Found& answer) {
  const auto holder = links_abroad_.find(link.uid);
  const auto found = queries_.find(answer.query);
  if (holder == links_abroad_.end() || holder->second != link.fd || found == queries_.end() ||
      found->second.generation != answer.generation ||
      std::erase(found->second.waiting, kAbroad) == 0)
    return;
  const uint32_t id = found->first;
  const UndecidedEnd asked_for = undecided_.find(found->second.stream, found->second.generation);
  if (asked_for.anchor < 0) {
    queries_.erase(found);
    return;
  }
  for (const uint16_t nid : answer.nids)
    if (nid != 0 && nid != node_.nid) ask_node(id, nid, asked_for, true);
  if (found->second.waiting.empty()) all_have_answered(id);
}

}  // namespace sidestep::engine

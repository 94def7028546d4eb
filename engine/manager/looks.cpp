// Streams for which nobody was found: they are entered in the directory until somebody is, and
// looked for again.
#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/manager/manager.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr size_t kMostUnheard = 100'000;
}  // namespace

void Manager::enter_into(Directory& directory) {
  for (const auto& [wanted, who] : unheard_)
    directory.enter(Directory::End::accepting, wanted, node_.nid);
}

bool Manager::look_later(const Tuple& wanted, const Unheard& who, size_t found) {
  Directory* const directory = node_.streams.directory();
  if (directory == nullptr || who.looks >= kLooks.size() ||
      looks_[who.looks].size() >= kMostUnheard)
    return false;
  looks_[who.looks].push_back({wanted, who, now_ns() + kLooks[who.looks] * kMillisecond});
  unheard_.emplace(wanted, who);
  // Without room, the end that comes later does not find this one; the next look finds that end.
  if (!directory->enter(Directory::End::accepting, wanted, node_.nid)) return true;
  std::array<uint16_t, Directory::kWindow> nids;
  if (directory->find(Directory::End::connecting, wanted, nids) > found) on_entered(wanted);
  return true;
}

bool Manager::forget_unheard(const Tuple& wanted, const Unheard& who) {
  const auto [first, last] = unheard_.equal_range(wanted);
  const auto found =
      std::find_if(first, last, [&who](const auto& entry) { return entry.second == who; });
  if (found == last) return false;
  unheard_.erase(found);
  if (Directory* const directory = node_.streams.directory(); directory != nullptr)
    directory->leave(Directory::End::accepting, wanted, node_.nid);
  return true;
}

std::vector<uint16_t> Manager::nodes_that_have_not_joined() const {
  const Directory* const directory = node_.streams.directory();
  std::vector<uint16_t> nodes = node_.names.list().value_or(std::vector<uint16_t>());
  std::erase_if(nodes,
                [&](uint16_t nid) { return nid == node_.nid || directory->has_joined(nid); });
  return nodes;
}

void Manager::look_again(uint64_t now) {
  std::optional<bool> all_have_joined;  // determined once, and only where it matters
  for (unsigned looks = 0; looks < kLooks.size(); ++looks) {
    std::deque<Look>& waiting = looks_[looks];
    // Those that are nearly due are taken as well, as in ask_for_grown().
    const uint64_t soon = now + kLooks[looks] * kMillisecond / 4;
    for (uint64_t limit = now; !waiting.empty() && waiting.front().due <= limit; limit = soon) {
      const Look one = waiting.front();
      waiting.pop_front();
      if (!forget_unheard(one.wanted, one.who)) continue;  // somebody has come
      if (!undecided_.has(one.who.stream, one.who.generation)) continue;
      std::array<uint16_t, Directory::kWindow> nids;
      const Directory* const directory = node_.streams.directory();
      const Unheard later{one.who.stream, one.who.generation, looks + 1};
      // Read before the look: a node enters what it holds before it joins.
      if (later.looks == kLooks.size() && !all_have_joined)
        all_have_joined = nodes_that_have_not_joined().empty();
      // Nobody tells of an end in another user's directory, on another host, or at a node that is
      // so busy that it has not joined yet.
      const bool asks = directory->find(Directory::End::connecting, one.wanted, nids) != 0 ||
                        !node_.trust.trusts_nobody() ||
                        (node_.names.are_files() && node_.jobs.talks_to_other_hosts()) ||
                        (later.looks == kLooks.size() && !all_have_joined.value_or(true));
      if (asks) {
        start_query(later.stream, later.generation, later.looks);
      } else if (!look_later(one.wanted, later, 0)) {
        undecided_.stay_on_kernel(later.stream, later.generation, reason_for_nobody(one.wanted));
      }
    }
  }
}

void Manager::tell_waiting(uint32_t stream_id, uint32_t generation) {
  Tuple tuple;
  {
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    const Stream* const stream = node_.streams.table().find(stream_id, generation);
    if (!UndecidedStream::is_one(stream)) return;
    tuple = stream->tuple();
  }
  std::array<uint16_t, Directory::kWindow> nids;
  const size_t count = node_.streams.directory()->find(Directory::End::accepting, tuple, nids);
  ControlMessage message;
  message.type = static_cast<uint16_t>(ControlType::entered);
  message.nid = node_.nid;
  message.tuple = tuple;
  for (size_t i = 0; i < count; ++i) {
    int error = 0;
    if (nids[i] == node_.nid) {
      on_entered(tuple);
    } else if (Link* const link = links_.to(nids[i], error); link != nullptr) {
      links_.send(*link, message);  // if this fails, the next look finds it
    } else if (error == -ECONNREFUSED) {
      node_.streams.directory()->leave(Directory::End::accepting, tuple, nids[i]);
    }
  }
}

void Manager::on_entered(const Tuple& tuple) {
  // It does not matter who says so: streams that wait in vain go on waiting.
  std::array<uint16_t, Directory::kWindow> nids;
  if (!unheard_.contains(tuple) ||
      node_.streams.directory()->find(Directory::End::connecting, tuple, nids) == 0)
    return;
  std::vector<Unheard> heard;
  for (auto [at, last] = unheard_.equal_range(tuple); at != last; ++at) heard.push_back(at->second);
  for (const Unheard& who : heard)
    if (forget_unheard(tuple, who)) start_query(who.stream, who.generation, who.looks);
}

}  // namespace sidestep::engine

#include "engine/manager/unheard_streams.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
constexpr size_t kMostUnheard = 100'000;
}  // namespace

void UnheardStreams::enter_into(Directory& directory) {
  for (const auto& [wanted, who] : unheard_)
    directory.enter(Directory::End::accepting, wanted, node_.nid);
}

bool UnheardStreams::look_later(const Tuple& wanted, const UnheardStream& who, size_t found) {
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

bool UnheardStreams::forget(const Tuple& wanted, const UnheardStream& who) {
  const auto [first, last] = unheard_.equal_range(wanted);
  const auto found =
      std::find_if(first, last, [&who](const auto& entry) { return entry.second == who; });
  if (found == last) return false;
  unheard_.erase(found);
  if (Directory* const directory = node_.streams.directory(); directory != nullptr)
    directory->leave(Directory::End::accepting, wanted, node_.nid);
  return true;
}

void UnheardStreams::look_again(uint64_t now) {
  std::optional<bool> all_have_joined;  // determined once, and only where it matters
  for (unsigned looks = 0; looks < kLooks.size(); ++looks) {
    std::deque<Look>& waiting = looks_[looks];
    // Those that are nearly due are taken as well, as with young streams.
    const uint64_t soon = now + kLooks[looks] * kMillisecond / 4;
    for (uint64_t limit = now; !waiting.empty() && waiting.front().due <= limit; limit = soon) {
      const Look one = waiting.front();
      waiting.pop_front();
      if (!forget(one.wanted, one.who)) continue;  // somebody has come
      if (!undecided_.has(one.who.stream, one.who.generation)) continue;
      std::array<uint16_t, Directory::kWindow> nids;
      const Directory* const directory = node_.streams.directory();
      const UnheardStream later{one.who.stream, one.who.generation, looks + 1};
      // Read before the look: a node enters what it holds before it joins.
      if (later.looks == kLooks.size() && !all_have_joined)
        all_have_joined = directory_.nodes_that_have_not_joined().empty();
      // Nobody tells of an end in another user's directory, on another host, or at a node that is
      // so busy that it has not joined yet.
      const bool asks = directory->find(Directory::End::connecting, one.wanted, nids) != 0 ||
                        !node_.trust.trusts_nobody() ||
                        (node_.names.are_files() && node_.jobs.talks_to_other_hosts()) ||
                        (later.looks == kLooks.size() && !all_have_joined.value_or(true));
      if (asks) {
        asker_.ask_again(later);
      } else if (!look_later(one.wanted, later, 0)) {
        undecided_.stay_on_kernel(later.stream, later.generation,
                                  proofs_.reason_for_nobody(one.wanted));
      }
    }
  }
}

void UnheardStreams::tell(uint32_t stream_id, uint32_t generation) {
  Tuple tuple;
  {
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    const Stream* const stream = node_.streams.table().find(stream_id, generation);
    if (!UndecidedStream::is_one(stream)) return;
    tuple = stream->tuple();
  }
  std::array<uint16_t, Directory::kWindow> nids;
  const size_t count = node_.streams.directory()->find(Directory::End::accepting, tuple, nids);
  for (size_t i = 0; i < count; ++i) {
    int error = 0;
    if (nids[i] == node_.nid) {
      on_entered(tuple);
    } else if (Link* const link = links_.to(nids[i], error); link != nullptr) {
      links_.send(*link, control::Entered{tuple});  // if this fails, the next look finds it
    } else if (error == -ECONNREFUSED) {
      node_.streams.directory()->leave(Directory::End::accepting, tuple, nids[i]);
    }
  }
}

void UnheardStreams::on_entered(const Tuple& tuple) {
  // It does not matter who says so: streams that wait in vain go on waiting.
  std::array<uint16_t, Directory::kWindow> nids;
  if (!unheard_.contains(tuple) ||
      node_.streams.directory()->find(Directory::End::connecting, tuple, nids) == 0)
    return;
  std::vector<UnheardStream> heard;
  for (auto [at, last] = unheard_.equal_range(tuple); at != last; ++at) heard.push_back(at->second);
  for (const UnheardStream& who : heard)
    if (forget(tuple, who)) asker_.ask_again(who);
}

uint64_t UnheardStreams::next_at() const noexcept {
  uint64_t next = 0;
  for (const std::deque<Look>& waiting : looks_)
    if (!waiting.empty() && (next == 0 || waiting.front().due < next)) next = waiting.front().due;
  return next;
}

}  // namespace sidestep::engine

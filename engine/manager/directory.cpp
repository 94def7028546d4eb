// The directory of this user's nodes: who makes it, and how the others get it
// (control/directory.hpp).
//
// One node hands it out: the first to bind the name for that. When that node is gone, another takes
// the name, and the file lives on because all nodes have it. A newcomer, which has none, may be
// faster. So a node that has just bound the name and has no directory first asks the nodes that it
// finds whether they have one.
#include <algorithm>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/manager/manager.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {
namespace {
constexpr uint64_t kMillisecond = 1'000'000;
// The node that hands out the directory may end at any time; its beats show that it has not.
constexpr uint64_t kLookEvery = 1'000 * kMillisecond;
constexpr uint64_t kSeekAgain = 50 * kMillisecond;
constexpr uint64_t kAnswerWait = 300 * kMillisecond;
constexpr uint64_t kSweepEvery = 10'000 * kMillisecond;
constexpr unsigned kMostSilent = 3;  // looks
constexpr size_t kMostDirectories = 16;
constexpr size_t kMostAsked = 8;  // all of them have the same, if they have one
constexpr size_t kMostUnheard = 100'000;
}  // namespace

// ---- having it

void Manager::look_after_directory(uint64_t now) {
  if (node_.jobs.wants_sweep() && now >= sweep_at_) sweep_directory(now);
  if (directory_at_ == 0 || now < directory_at_) return;
  directory_at_ = now + kLookEvery;
  Directory* const directory = node_.streams.directory();
  if (directory_fd_ >= 0 || directory != nullptr) end_seeking();
  if (directory_fd_ >= 0) {
    if (directory == nullptr) make_directory();  // those that were asked did not answer
    if (node_.streams.directory() != nullptr) node_.streams.directory()->beat();
  } else if (directory == nullptr) {
    // The node that hands it out may get no processor for seconds. Others may have it.
    const auto holder = std::find(seeking_.begin(), seeking_.end(), directory_link_);
    if (holder == seeking_.end()) {
      ask_for_directory(now);
    } else if (seeking_.size() == 1) {
      ask_nodes_for_directory();
    }
  } else {
    // Do not check each time whether the name is free: that takes a descriptor, perhaps the last.
    const uint64_t beats = directory->beats();
    silent_looks_ = beats == beats_seen_ ? silent_looks_ + 1 : 0;
    beats_seen_ = beats;
    if (silent_looks_ >= kMostSilent) {
      silent_looks_ = 0;
      // A newcomer that could ask nobody may have taken the name and made another directory. All of
      // them are kept, so there must not be many.
      if (!take_directory_seat(directory_seat_) && directories_.size() < kMostDirectories)
        ask_for_directory(now);
    }
  }
  asks_everybody_ = looked_after_directory_ && node_.streams.directory() == nullptr;
  looked_after_directory_ = true;
}

bool Manager::take_directory_seat(unsigned seat) {
  directory_fd_ = node_.names.listen_for_directory(seat);
  if (directory_fd_ < 0) return false;
  directory_seat_ = seat;
  // There is one such node, so that the host has an answer for those who ask whether anybody is
  // there.
  port_.open(false);
  node_.watch(directory_fd_, EPOLLIN | EPOLLET);  // like the links' listener
  return true;
}

void Manager::ask_for_directory(uint64_t now) {
  for (unsigned seat = 0; seat < NodeNames::kDirectorySeats; ++seat) {
    if (take_directory_seat(seat)) {
      if (node_.streams.directory() != nullptr) return;
      ask_nodes_for_directory();
      directory_at_ = now + kAnswerWait;
      if (seeking_.empty()) make_directory();
      return;
    }
    const int fd = node_.names.open_link_to_directory(getuid(), seat);
    if (fd < 0) return;  // the node has just gone or is too busy: tried again later
    const LinkPeer peer = peer_of(fd);
    if (peer.pid < 0) {  // a stranger has the name
      private_fd_close(fd);
      continue;
    }
    directory_seat_ = seat;
    directory_link_ = links_.add(fd, 0, peer).fd;
    seek_over(directory_link_);
    return;
  }
}

void Manager::ask_nodes_for_directory() {
  const std::optional<std::vector<uint16_t>> names = node_.names.list();
  if (!names) return;
  for (const uint16_t nid : *names) {
    if (nid == node_.nid || seeking_.size() >= kMostAsked) continue;
    const int fd = node_.names.open_link(nid);
    const LinkPeer peer = fd >= 0 ? peer_of(fd) : LinkPeer{};
    if (peer.pid < 0) {
      private_fd_close(fd);
      continue;
    }
    Link& link = links_.add(fd, 0, peer);
    seek_over(link.fd);
  }
}

void Manager::seek_over(int fd) {
  Link& link = links_.at(fd);
  link.is_for_directory = true;
  ControlMessage message;
  message.type = static_cast<uint16_t>(ControlType::directory);
  seeking_.push_back(fd);
  if (links_.send(link, message) < 0) links_.close(fd, "it does not answer");
}

void Manager::seek_soon() noexcept {
  // Not at once: a process that holds the name might close each link that is opened.
  if (seeking_.empty()) directory_at_ = std::min(directory_at_, now_ns() + kSeekAgain);
}

void Manager::end_seeking() {
  for (const int fd : std::exchange(seeking_, {}))
    links_.close(fd, "it was asked for the directory");
}

void Manager::make_directory() {
  end_seeking();
  use_directory(Directory::create());
}

void Manager::use_directory(std::unique_ptr<Directory> directory) {
  if (directory == nullptr) return;
  if (!directories_.empty()) directories_.back()->give_up_file();
  directories_.push_back(std::move(directory));
  for (const auto& [wanted, who] : unheard_)
    directories_.back()->enter(Directory::End::accepting, wanted, node_.nid);
  node_.streams.use_directory(*directories_.back());
  directories_.back()->join(node_.nid);
  for (const int fd : std::exchange(directory_wanted_, {}))
    if (Link* const link = links_.find(fd); link != nullptr) answer_for_directory(*link);
}

void Manager::answer_for_directory(Link& link) {
  const Directory* const directory = node_.streams.directory();
  // The node that hands it out makes one soon. The others may be asking each other.
  if (directory == nullptr && link.is_for_directory) {
    if (std::find(directory_wanted_.begin(), directory_wanted_.end(), link.fd) ==
        directory_wanted_.end())
      directory_wanted_.push_back(link.fd);
    return;
  }
  ControlMessage reply;
  reply.type = static_cast<uint16_t>(ControlType::directory_reply);
  reply.nid = node_.nid;
  links_.send(link, reply, directory != nullptr ? directory->fd() : -1);
}

void Manager::on_directory(Link& link, Received& received) {
  const auto asked = std::find(seeking_.begin(), seeking_.end(), link.fd);
  if (asked == seeking_.end()) return;
  seeking_.erase(asked);
  std::unique_ptr<Directory> directory =
      received.fds[0] >= 0 ? Directory::map(received.fds[0]) : nullptr;
  const bool is_last = seeking_.empty();
  const Directory* const own = node_.streams.directory();
  if (directory != nullptr) end_seeking();
  links_.close(link.fd, "it was asked for the directory");
  if (directory != nullptr && (own == nullptr || !own->is_of(directory->fd()))) {
    use_directory(std::move(directory));
  } else if (own == nullptr && is_last && directory_fd_ >= 0) {
    make_directory();
  }
}

void Manager::sweep_directory(uint64_t now) {
  sweep_at_ = now + kSweepEvery;
  node_.jobs.begin_sweep();
  Directory* const directory = node_.streams.directory();
  if (directory == nullptr) return;
  // In this order: a node binds its name before it enters anything.
  const auto gone = std::make_unique<std::bitset<0x10000>>();
  directory->list(*gone);
  node_.names.sweep();
  const std::optional<std::vector<uint16_t>> names = node_.names.list();
  if (!names) return;
  for (const uint16_t nid : *names) gone->reset(nid);
  directory->sweep(*gone);
}

// ---- looking there

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

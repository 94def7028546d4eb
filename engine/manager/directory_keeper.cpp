#include "engine/manager/directory_keeper.hpp"

#include <unistd.h>

#include <algorithm>
#include <bitset>
#include <optional>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"

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
}  // namespace

void DirectoryKeeper::look_after(uint64_t now) {
  if (node_.jobs.wants_sweep() && now >= sweep_at_) sweep(now);
  if (look_at_ == 0 || now < look_at_) return;
  look_at_ = now + kLookEvery;
  Directory* const directory = node_.streams.directory();
  if (listen_fd_ >= 0 || directory != nullptr) end_seeking();
  if (listen_fd_ >= 0) {
    if (directory == nullptr) make();  // those that were asked did not answer
    if (node_.streams.directory() != nullptr) node_.streams.directory()->beat();
  } else if (directory == nullptr) {
    // The node that hands it out may get no processor for seconds. Others may have it.
    const auto holder = std::find(seeking_.begin(), seeking_.end(), holder_link_);
    if (holder == seeking_.end()) {
      ask(now);
    } else if (seeking_.size() == 1) {
      ask_nodes();
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
      if (!take_seat(seat_) && directories_.size() < kMostDirectories) ask(now);
    }
  }
  asks_everybody_ = looked_after_ && node_.streams.directory() == nullptr;
  looked_after_ = true;
}

bool DirectoryKeeper::take_seat(unsigned seat) {
  listen_fd_ = node_.names.listen_for_directory(seat);
  if (listen_fd_ < 0) return false;
  seat_ = seat;
  // There is one such node, so that the host has an answer for those who ask whether anybody is
  // there.
  port_.open(false);
  node_.watch(listen_fd_, EPOLLIN | EPOLLET);  // like the links' listener
  return true;
}

void DirectoryKeeper::ask(uint64_t now) {
  for (unsigned seat = 0; seat < NodeNames::kDirectorySeats; ++seat) {
    if (take_seat(seat)) {
      if (node_.streams.directory() != nullptr) return;
      ask_nodes();
      look_at_ = now + kAnswerWait;
      if (seeking_.empty()) make();
      return;
    }
    const int fd = node_.names.open_link_to_directory(getuid(), seat);
    if (fd < 0) return;  // the node has just gone or is too busy: tried again later
    const LinkPeer peer = peer_of(fd);
    if (peer.pid < 0) {  // a stranger has the name
      private_fd_close(fd);
      continue;
    }
    seat_ = seat;
    holder_link_ = links_.add(fd, 0, peer).fd;
    seek_over(holder_link_);
    return;
  }
}

void DirectoryKeeper::ask_nodes() {
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

void DirectoryKeeper::seek_over(int fd) {
  Link& link = links_.at(fd);
  link.is_for_directory = true;
  seeking_.push_back(fd);
  if (links_.send(link, control::AskForDirectory{}) < 0) links_.close(fd, "it does not answer");
}

void DirectoryKeeper::end_seeking() {
  for (const int fd : std::exchange(seeking_, {}))
    links_.close(fd, "it was asked for the directory");
}

void DirectoryKeeper::make() {
  end_seeking();
  use(Directory::create());
}

void DirectoryKeeper::use(std::unique_ptr<Directory> directory) {
  if (directory == nullptr) return;
  if (!directories_.empty()) directories_.back()->give_up_file();
  directories_.push_back(std::move(directory));
  user_.enter_into(*directories_.back());
  node_.streams.use_directory(*directories_.back());
  directories_.back()->join(node_.nid);
  for (const int fd : std::exchange(wanted_, {}))
    if (Link* const link = links_.find(fd); link != nullptr) answer(*link);
}

std::vector<uint16_t> DirectoryKeeper::nodes_that_have_not_joined() const {
  const Directory* const directory = node_.streams.directory();
  std::vector<uint16_t> nodes = node_.names.list().value_or(std::vector<uint16_t>());
  std::erase_if(nodes,
                [&](uint16_t nid) { return nid == node_.nid || directory->has_joined(nid); });
  return nodes;
}

void DirectoryKeeper::answer(Link& link) {
  const Directory* const directory = node_.streams.directory();
  // The node that hands it out makes one soon. The others may be asking each other.
  if (directory == nullptr && link.is_for_directory) {
    if (std::find(wanted_.begin(), wanted_.end(), link.fd) == wanted_.end())
      wanted_.push_back(link.fd);
    return;
  }
  links_.send(link, control::DirectoryReply{}, directory != nullptr ? directory->fd() : -1);
}

void DirectoryKeeper::on_reply(Link& link, Received& received) {
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
    use(std::move(directory));
  } else if (own == nullptr && is_last && listen_fd_ >= 0) {
    make();
  }
}

void DirectoryKeeper::on_link_end(const Link& link) {
  std::erase(wanted_, link.fd);
  if (link.fd == holder_link_) holder_link_ = -1;
  // Not at once: a process that holds the name might close each link that is opened.
  if (std::erase(seeking_, link.fd) != 0 && seeking_.empty())
    look_at_ = std::min(look_at_, now_ns() + kSeekAgain);
}

void DirectoryKeeper::stop_listening() noexcept {
  if (listen_fd_ >= 0) node_.names.take_away_directory(seat_);
  private_fd_close(listen_fd_);
  listen_fd_ = -1;
}

uint64_t DirectoryKeeper::next_at() const noexcept {
  return node_.jobs.wants_sweep() && sweep_at_ != 0 ? std::min(look_at_, sweep_at_) : look_at_;
}

void DirectoryKeeper::sweep(uint64_t now) {
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

}  // namespace sidestep::engine

#include "engine/manager/manager.hpp"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/clock.hpp"
#include "engine/base/engine_threads.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/random.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/alarm.hpp"
#include "engine/progress/progress.hpp"

namespace sidestep::engine {

Manager::Manager(const config::Config& config, ManagerJobs& jobs, Progress& progress,
                 NodeStreams& streams, std::string (*status)(void* node), void* node)
    : node_(config, jobs, progress, streams),
      status_(status),
      status_node_(node),
      links_(node_, *this),
      undecided_(node_),
      room_(node_, *this),
      local_(node_, links_, undecided_, room_),
      datagram_limit_(random_number()),
      paths_(node_, links_, datagram_limit_),
      proofs_(node_, links_, paths_),
      port_(node_, links_, datagram_limit_, *this),
      hosts_(node_, port_),
      remote_(node_, undecided_, room_, port_, hosts_),
      ends_(node_, undecided_, proofs_, remote_),
      queries_({node_, links_, undecided_, paths_, proofs_, port_, hosts_, local_, remote_, ends_,
                directory_, unheard_}),
      unheard_(node_, links_, undecided_, proofs_, directory_, queries_),
      directory_(node_, links_, port_, unheard_) {
  node_.jobs.set_talks_to_other_hosts(port_.lets_talk());
}

uint16_t Manager::claim_nid(uint16_t preferred) noexcept {
  uint16_t start = preferred;
  if (preferred == 0 && getrandom(&start, sizeof start, GRND_NONBLOCK) < 0)
    start = static_cast<uint16_t>(getpid());
  while (node_.incarnation == 0)
    if (getrandom(&node_.incarnation, sizeof node_.incarnation, 0) < 0)
      node_.incarnation = now_ns() | 1U;
  int listen_fd = -1;
  for (uint32_t i = 0; i < 0xffff; ++i) {
    const auto nid = static_cast<uint16_t>((start + i - 1) % 0xffff + 1);
    listen_fd = links_.listen_as(nid);
    if (listen_fd >= 0) {
      node_.nid = nid;
      return nid;
    }
    if (listen_fd != -EADDRINUSE) break;
    if (preferred != 0) {
      log(LogLevel::error, "SIDESTEP_NID=%u: another process of this host has this NID", preferred);
      return 0;
    }
  }
  if (node_.names.are_files())
    log(LogLevel::error,
        "SIDESTEP_DIRECTORY: '%s' can't be used: %s; it must be a folder in which this user may "
        "make files",
        node_.config.directory.c_str(), std::strerror(-listen_fd));
  else
    log(LogLevel::error, "no NID could be claimed: %s", std::strerror(-listen_fd));
  return 0;
}

bool Manager::start() {
  node_.epoll_fd = private_fd_adopt(sys::epoll_create());
  epoll_event waking{};
  waking.events = EPOLLONESHOT;  // waits for nothing until ManagerJobs::wake()
  waking.data.fd = first_alarm();
  epoll_event listening{};
  listening.events = EPOLLIN | EPOLLET;  // without a free descriptor, none can be accepted
  listening.data.fd = links_.listen_fd();
  if (node_.epoll_fd < 0 ||
      sys::epoll_ctl(node_.epoll_fd, EPOLL_CTL_ADD, waking.data.fd, &waking) < 0 ||
      sys::epoll_ctl(node_.epoll_fd, EPOLL_CTL_ADD, listening.data.fd, &listening) < 0) {
    log(LogLevel::error, "the connection manager could not start");
    return false;
  }
  node_.jobs.open(node_.epoll_fd, waking.data.fd);
  node_.read_trust();
  hosts_.start();
  return start_engine_thread(entry, this, "sidestep-mgr");
}

void Manager::run_from_signal(void (*function)() noexcept) noexcept {
  // release pairs with the exchange in run_jobs().
  from_signal_.store(function, std::memory_order_release);
  node_.jobs.wake();
}

void Manager::leave(bool said_all) noexcept {
  if (runs_here()) {
    try {
      take_leave(said_all);
    } catch (const std::exception&) {
      // The peers find out by themselves.
    }
    return;
  }
  // relaxed: each caller waits for its own; an exec that fails is followed by another leave.
  const uint32_t number = leaves_asked_.fetch_add(1, std::memory_order_relaxed) + 1;
  node_.jobs.post({.kind = Job::Kind::leave, .said_all = said_all});
  // acquire pairs with the release in run_jobs(). The peers would find out by themselves later, but
  // would not learn that their streams are complete. That is worth waiting for a manager that is
  // opening a device or gets no processor.
  const uint64_t limit = now_ns() + (said_all ? 5'000'000'000 : 100'000'000);
  while (leaves_taken_.load(std::memory_order_acquire) < number && now_ns() < limit) {
    const timespec millisecond{0, 1'000'000};
    sys::ppoll(nullptr, 0, &millisecond, nullptr);
  }
}

void Manager::take_leave(bool said_all) {
  remote_.take_leave(said_all);
  // On this host, the end of the link tells the peers the rest.
  if (said_all) local_.take_leave();
}

bool Manager::runs_here() const noexcept {
  return thread_.load(std::memory_order_relaxed) == sys::call(SYS_gettid);
}

void* Manager::entry(void* self) noexcept {
  ask_for_short_slices();
  static_cast<Manager*>(self)->run();
  return nullptr;
}

void Manager::run() noexcept {
  thread_.store(sys::call(SYS_gettid), std::memory_order_relaxed);  // read by that thread
  epoll_event events[32];
  for (;;) {
    try {
      const int count =
          sys::epoll_pwait(node_.epoll_fd, events, 32, next_timeout(now_ns()), nullptr);
      if (count > 0) hear({events, static_cast<size_t>(count)});
      run_jobs();
      if (engine_threads_are_to_end()) return end();
      if (links_.takes_up_accepting(now_ns())) {
        links_.accept(links_.listen_fd(), false);
        links_.accept(directory_.listen_fd(), true);
      }
      directory_.look_after(now_ns());
      clear_streams(now_ns());
      undecided_.list_grown(now_ns());
      queries_.ask_for_grown(now_ns());
      unheard_.look_again(now_ns());
      queries_.ask_held(now_ns());
      queries_.retry(now_ns());
      remote_.retry(now_ns());
      port_.take_over(now_ns());
      hosts_.ask(now_ns());
      remote_.forget_idle(now_ns());
      proofs_.end_turn();
    } catch (const std::exception& error) {
      log(LogLevel::error, "the connection manager goes on after an error: %s", error.what());
    }
  }
}

void Manager::hear(std::span<const epoll_event> events) {
  // With many connections to be made at once, a node that asks for the directory would get it so
  // late that its peers no longer look for its streams there. So the links of nodes are read last.
  for (const epoll_event& event : events) {
    const int fd = event.data.fd;
    if (fd == first_alarm()) continue;  // ManagerJobs::wake(): run() does the work afterwards
    if (fd == links_.listen_fd() || fd == directory_.listen_fd()) {
      links_.accept(fd, fd == directory_.listen_fd());
    } else if (fd == paths_.fd()) {
      paths_.read();
    } else if (port_.has(fd)) {
      port_.read(fd);
    } else {
      links_.read(event);
    }
  }
  links_.read_nodes(events);
}

void Manager::end() noexcept {
  constexpr const char* kWhy = "the engine of this process has ended";
  try {
    links_.close_all(kWhy);
    remote_.lose_all(kWhy);
    if (Connection* const own = node_.progress.connections().find(node_.nid, 0))
      node_.streams.lose_connection(*own, kWhy, PeerProcess::may_live);
  } catch (const std::exception& error) {
    log(LogLevel::error, "the connection manager could not end properly: %s", error.what());
  }
  if (Directory* const directory = node_.streams.directory(); directory != nullptr)
    directory->part(node_.nid);
  links_.stop_listening();
  directory_.stop_listening();
  port_.close();
}

void Manager::run_jobs() {
  if (auto* function = from_signal_.exchange(nullptr, std::memory_order_acq_rel)) function();
  for (const Job& job : node_.jobs.take()) {
    if (job.kind == Job::Kind::query) {
      queries_.start(job.stream, job.generation);
    } else if (job.kind == Job::Kind::look) {
      uncleared_.push_back({job.stream, job.generation});
    } else if (job.kind == Job::Kind::sweep) {
      // directory_.look_after() does it in due time.
    } else if (job.kind == Job::Kind::tell) {
      unheard_.tell(job.stream, job.generation);
    } else if (job.kind == Job::Kind::meet) {
      port_.open(false);
    } else if (job.kind == Job::Kind::grow) {
      job.device->grow();
    } else if (job.kind == Job::Kind::leave) {
      take_leave(job.said_all);
      leaves_taken_.fetch_add(1, std::memory_order_release);
    } else if (Connection* connection = node_.progress.connections().get(job.connection);
               connection != nullptr && &connection->endpoint() == job.endpoint) {
      fail_connection(*connection, "it has failed");
    }
  }
}

void Manager::clear_streams(uint64_t now) {
  if (uncleared_.empty() || now < look_at_) return;
  const auto may_wait_unseen = Clearance::may_wait_unseen.load(std::memory_order_acquire);
  const std::optional<bool> unseen = may_wait_unseen != nullptr ? may_wait_unseen() : false;
  if (!unseen) {  // perhaps there was no descriptor to look with
    look_at_ = now + 1'000'000'000;
    return;
  }
  // The check looks at every descriptor there is: a tenth of this thread's time is enough for it.
  const uint64_t end = now_ns();
  look_at_ = end + 9 * (end - now);
  for (const auto& [id, generation] : std::exchange(uncleared_, {})) {
    if (*unseen) continue;  // held until the program waits where it can be seen
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    Stream* const stream = node_.streams.table().find(id, generation);
    if (stream != nullptr && !stream->is_closed()) stream->clearance().give();
  }
}

int Manager::next_timeout(uint64_t now) const {
  uint64_t next = uncleared_.empty() ? 0 : look_at_;
  for (const uint64_t at :
       {port_.next_at(), links_.next_at(), node_.jobs.unasked().next_due(),
        node_.jobs.unlisted().next_due(), directory_.next_at(), unheard_.next_at(),
        hosts_.next_at(), queries_.next_at(), remote_.next_at()})
    if (at != 0 && (next == 0 || at < next)) next = at;
  if (next == 0) return -1;
  constexpr uint64_t kMillisecond = 1'000'000;
  return next <= now ? 0 : static_cast<int>((next - now + kMillisecond - 1) / kMillisecond);
}

// ---- what its parts tell it

void Manager::fail_connection(Connection& connection, const char* why) {
  if (!remote_.fail_connection(connection, why)) local_.fail_connection(connection, why);
}

void Manager::on_link_end(const Link& link, const char* why, PeerProcess peer, bool was_named) {
  directory_.on_link_end(link);
  queries_.on_link_end(link);
  local_.on_link_end(link, why, peer);
  paths_.forget(link.nid);
  if (was_named) queries_.forget_answers_of(link.nid);
}

void Manager::on_message(Link& link, Received& received) {
  const ControlMessage& message = received.message;
  switch (message.type()) {
    case ControlType::hello:
      links_.on_hello(link, message.as<control::Hello>().nid);
      break;
    case ControlType::who_has:
      ends_.answer(link, received);
      break;
    case ControlType::owner:
      queries_.on_owner(link, received);
      break;
    case ControlType::connect:
      local_.on_connect(link, received);
      break;
    case ControlType::accept:
      local_.on_accept(link, received);
      break;
    case ControlType::refuse:
      local_.on_refuse(link, message.as<control::Refuse>().lane);
      break;
    case ControlType::find:
      queries_.answer_find(link, message.as<control::Find>());
      break;
    case ControlType::found:
      queries_.on_found(link, message.as<control::Found>());
      break;
    case ControlType::path:
      paths_.on_path(link, message.as<control::Path>());
      break;
    case ControlType::path_ok:
      paths_.on_path_ok(link, message.as<control::PathOk>());
      break;
    case ControlType::status:
      if (link.is_own) send_status(link);
      break;
    case ControlType::failed:
      local_.on_failed(link, received);
      break;
    case ControlType::relay:
      port_.on_relay(link, message.as<control::Relay>());
      break;
    case ControlType::leave:
      link.said_all = true;
      break;
    case ControlType::directory:
      if (link.is_own) directory_.answer(link);
      break;
    case ControlType::directory_reply:
      directory_.on_reply(link, received);
      break;
    case ControlType::entered:
      unheard_.on_entered(message.as<control::Entered>().tuple);
      break;
    case ControlType::status_reply:
      break;
  }
}

void Manager::on_datagram(const DiscoveryMessage& message, const sockaddr_in6& from) {
  switch (message.type()) {
    case DiscoveryType::who_has:
      return queries_.on_remote_question(message, from);
    case DiscoveryType::owner:
      return queries_.on_remote_owner(message, from);
    case DiscoveryType::connect:
      return remote_.on_connect(message, from);
    case DiscoveryType::accept:
      return remote_.on_accept(message, from);
    case DiscoveryType::ready:
      return remote_.on_ready(message);
    case DiscoveryType::refuse:
    case DiscoveryType::gone:
      return remote_.on_end(message, from);
    case DiscoveryType::failed:
      return remote_.on_failed(message, from);
    case DiscoveryType::failed_ack:
      return remote_.on_failed_ack(message);
    case DiscoveryType::leave:
      return remote_.on_leave(message, from);
    case DiscoveryType::ask_host:
      return hosts_.on_question(message, from);
    case DiscoveryType::host_reply:
      return hosts_.on_answer(message, from);
  }
}

void Manager::send_status(Link& link) {
  const std::string text = status_(status_node_);
  const int fd = sys::memfd_create("sidestep-status", MFD_CLOEXEC);
  if (fd < 0) return;
  size_t done = 0;
  while (done < text.size()) {
    const long written = sys::write(fd, text.data() + done, text.size() - done);
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  links_.send(link, control::StatusReply{}, fd);
  sys::close(fd);
}

}  // namespace sidestep::engine

// Streams among descriptors of other kinds, in one set.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

enum Kind { kStream, kOther, kPipe, kUnix, kEvent, kTimer, kSignal, kKinds };
constexpr std::array<const char*, kKinds> kNames{"stream", "other", "pipe",  "unix",
                                                 "event",  "timer", "signal"};

/// One descriptor of each kind. Each can be made readable. Belongs to the thread that creates it.
class Sources {
 public:
  Sources() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    if (pipe(pipe_.data()) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, unix_.data()) != 0)
      std::abort();
    fds_ = {stream_.server(),
            other_.client(),
            pipe_[0],
            unix_[0],
            eventfd(0, 0),
            timerfd_create(CLOCK_MONOTONIC, 0),
            signalfd(-1, &signals_, 0)};
  }
  ~Sources() {
    for (const int fd :
         {pipe_[0], pipe_[1], unix_[0], unix_[1], fds_[kEvent], fds_[kTimer], fds_[kSignal]})
      close(fd);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Sources(const Sources&) = delete;

  int fd(size_t kind) const { return fds_[kind]; }

  void make_readable(size_t kind) const {
    switch (kind) {
      case kStream:
        return give(stream_.client(), "x");
      case kOther:
        return give(other_.server(), "x");
      case kPipe:
      case kUnix:
        if (write(kind == kPipe ? pipe_[1] : unix_[1], "x", 1) != 1) std::abort();
        return;
      case kEvent:
        if (eventfd_write(fds_[kEvent], 1) != 0) std::abort();
        return;
      case kTimer: {
        const itimerspec soon{{0, 0}, {0, 1}};
        timerfd_settime(fds_[kTimer], 0, &soon, nullptr);
        return;
      }
      default:
        pthread_kill(owner_, SIGUSR2);
    }
  }

  void consume(size_t kind) const {
    std::array<char, 256> data;
    if (read(fds_[kind], data.data(), kind < kEvent ? 1 : data.size()) <= 0) std::abort();
  }

 private:
  const Pair stream_;
  const Pair other_;
  std::array<int, 2> pipe_{};
  std::array<int, 2> unix_{};
  sigset_t signals_{};
  sigset_t before_{};
  std::array<int, kKinds> fds_{};
  const pthread_t owner_ = pthread_self();
};

/// Returns the names of the readable descriptors in their order. Waits for the first at most
/// `milliseconds`.
using Wait = std::function<std::string(int milliseconds)>;

std::string names_of(const std::vector<bool>& readable) {
  std::string names;
  for (size_t i = 0; i < kKinds; ++i)
    if (readable[i]) names += std::string(names.empty() ? "" : " ") + kNames[i];
  return names;
}

class Epoll {
 public:
  Epoll(const Sources& sources, uint32_t flags) : flags_(flags) {
    for (uint32_t i = 0; i < kKinds; ++i) control(EPOLL_CTL_ADD, sources, i);
  }
  ~Epoll() { close(fd_); }
  Epoll(const Epoll&) = delete;

  void control(int operation, const Sources& sources, uint32_t kind) const {
    epoll_event event{EPOLLIN | flags_, {}};
    event.data.u32 = kind;
    if (epoll_ctl(fd_, operation, sources.fd(kind), &event) != 0) std::abort();
  }
  /// Combines the results of four calls, because a ready socket on the engine may hide other
  /// descriptors in three calls out of four.
  std::string wait(int milliseconds) const {
    std::vector<bool> readable(kKinds);
    for (int call = 0; call < 4; ++call) {
      std::array<epoll_event, kKinds + 1> events;
      const int count = epoll_wait(fd_, events.data(), static_cast<int>(events.size()),
                                   call == 0 ? milliseconds : 0);
      for (int i = 0; i < count; ++i) readable[events[static_cast<size_t>(i)].data.u32] = true;
    }
    return names_of(readable);
  }

 private:
  uint32_t flags_;
  int fd_ = epoll_create1(EPOLL_CLOEXEC);
};

std::string by_poll(const Sources& sources, int milliseconds) {
  std::array<pollfd, kKinds> fds{};
  for (size_t i = 0; i < kKinds; ++i) fds[i] = {sources.fd(i), POLLIN, 0};
  poll(fds.data(), fds.size(), milliseconds);
  std::vector<bool> readable;
  for (const pollfd& one : fds) readable.push_back(one.revents == POLLIN);
  return names_of(readable);
}

std::string by_select(const Sources& sources, int milliseconds) {
  fd_set set;
  FD_ZERO(&set);
  int end = 0;
  for (size_t i = 0; i < kKinds; ++i) {
    FD_SET(sources.fd(i), &set);
    end = std::max(end, sources.fd(i) + 1);
  }
  timeval time{0, milliseconds * 1000};
  if (select(end, &set, nullptr, nullptr, &time) == 0) FD_ZERO(&set);
  std::vector<bool> readable;
  for (size_t i = 0; i < kKinds; ++i) readable.push_back(FD_ISSET(sources.fd(i), &set));
  return names_of(readable);
}

/// Waits until all descriptors are seen at once. The timer takes a moment.
std::string await_all(const Wait& wait, const std::string& all) {
  std::string seen;
  for (int i = 0; i < 500 && seen != all; ++i) {
    seen = wait(0);
    usleep(1000);
  }
  return seen;
}

/// Checks any level-triggered way to wait.
void each_alone_and_all_together(const Sources& sources, const Wait& wait) {
  NOTE(wait(0));
  for (size_t i = 0; i < kKinds; ++i) {
    sources.make_readable(i);
    NOTE(wait(900));
    NOTE(wait(0));
    sources.consume(i);
    NOTE(wait(0));
  }
  for (size_t i = 0; i < kKinds; ++i) {
    // A descriptor becomes readable while a thread waits for all of them.
    const Later later(5, [&] { sources.make_readable(i); });
    NOTE(wait(900));
    sources.consume(i);
  }
  for (size_t i = 0; i < kKinds; ++i) sources.make_readable(i);
  NOTE(await_all(wait, names_of(std::vector<bool>(kKinds, true))));
  for (size_t i = 0; i < kKinds; ++i) {
    sources.consume(i);
    NOTE(wait(0));
  }
  NOTE(wait(20));
}

}  // namespace

CASE(mixed, epoll_level_triggered) {
  const Sources sources;
  const Epoll epoll(sources, 0);
  each_alone_and_all_together(sources, [&](int time) { return epoll.wait(time); });
}

CASE(mixed, poll) {
  const Sources sources;
  each_alone_and_all_together(sources, [&](int time) { return by_poll(sources, time); });
}

CASE(mixed, select) {
  const Sources sources;
  each_alone_and_all_together(sources, [&](int time) { return by_select(sources, time); });
}

CASE(mixed, streams_of_both_carriers) {
  const Pair pair;
  const Pair other;  // on the kernel from now on
  constexpr int kOn = 1;
  SEE(setsockopt(other.server(), SOL_SOCKET, SO_TIMESTAMP, &kOn, sizeof kOn));
  give(other.client(), "x");
  await_bytes(other.server(), 1);
  for (const short events : {short{POLLIN}, short{POLLIN | POLLOUT}}) {
    for (const int timeout : {0, 1000}) {
      pollfd fds[] = {{pair.server(), events, -1}, {other.server(), POLLIN, -1}, {-1, POLLIN, -1}};
      SEE(poll(fds, 3, timeout));
      for (const pollfd& fd : fds) NOTE(fd.revents);
      SEE(poll(fds, 2, timeout));
      for (const pollfd& fd : fds) NOTE(fd.revents);
    }
  }
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.server(), &in);
  FD_SET(other.server(), &in);
  timeval nothing{};
  SEE(select(std::max(pair.server(), other.server()) + 1, &in, nullptr, nullptr, &nothing));
  NOTE(FD_ISSET(pair.server(), &in) != 0);
  NOTE(FD_ISSET(other.server(), &in) != 0);
  NOTE(take(other.server(), 1));
  pollfd fds[] = {{pair.server(), POLLIN, -1}, {-1, POLLIN, -1}, {other.server(), POLLIN, -1}};
  SEE(poll(fds, 3, 0));
  for (const pollfd& fd : fds) NOTE(fd.revents);
  give(pair.client(), "y");
  SEE(poll(fds, 3, 1000));
  for (const pollfd& fd : fds) NOTE(fd.revents);
}

CASE(mixed, epoll_oneshot) {
  const Sources sources;
  const Epoll epoll(sources, EPOLLONESHOT);
  for (uint32_t i = 0; i < kKinds; ++i) {
    sources.make_readable(i);
    NOTE(epoll.wait(900));
    NOTE(epoll.wait(0));
    epoll.control(EPOLL_CTL_MOD, sources, i);
    NOTE(epoll.wait(900));
    sources.consume(i);
    epoll.control(EPOLL_CTL_MOD, sources, i);
    NOTE(epoll.wait(0));
  }
  for (uint32_t i = 0; i < kKinds; ++i) {
    const Later later(5, [&] { sources.make_readable(i); });
    NOTE(epoll.wait(900));
    sources.consume(i);
    epoll.control(EPOLL_CTL_MOD, sources, i);
  }
}

CASE(mixed, epoll_edge_triggered) {
  const Sources sources;
  const Epoll epoll(sources, EPOLLET);
  for (size_t i = 0; i < kKinds; ++i) {
    sources.make_readable(i);
    NOTE(epoll.wait(900));
    sources.consume(i);
  }
  for (size_t i = 0; i < kKinds; ++i) {
    const Later later(5, [&] { sources.make_readable(i); });
    NOTE(epoll.wait(900));
    sources.consume(i);
  }
  NOTE(epoll.wait(20));
}

CASE(mixed, many_sets_and_a_member_that_leaves) {
  const Sources sources;
  const Epoll first(sources, 0);
  const Epoll second(sources, EPOLLONESHOT);
  for (uint32_t i = 0; i < kKinds; ++i) {
    sources.make_readable(i);
    NOTE(first.wait(900));
    NOTE(second.wait(900));
    NOTE(by_poll(sources, 0));
    first.control(EPOLL_CTL_DEL, sources, i);
    NOTE(first.wait(0));
    NOTE(by_select(sources, 0));
    sources.consume(i);
  }
}

}  // namespace conformance

// Many threads wait for many streams: tokens circulate within one process.
//
//   crowd WAY THREADS STREAMS TOKENS SECONDS [switching] [signals]
//
// A token is 8 bytes. A thread that learns that a stream is readable takes the tokens out of it and
// sends each on over a random stream. If a wake-up is lost, its token stays where it is, unless
// another token follows it into the stream. At the end the threads no longer send tokens on, and
// the lost one is missing. WAY:
//
//   oneshot   all threads wait in one set (EPOLLONESHOT): no stream may be given to two of them
//   edge      all threads wait in one set (EPOLLET)
//   many      each thread has a set of its own, and every stream is in four of them
//   poll      each thread polls its share of the streams
//   read      each stream has a thread that reads it; THREADS does not matter
//   alone     each stream has a thread that polls it, and nothing else
//
// With `switching`, another thread moves the streams back and forth between their carriers. With
// `signals`, it sends signals to the threads; the handler interrupts the calls in which they wait.
//
// Prints {"hops": ..., "lost": ..., "doubled": ..., "wrong": ...}. 64-bit Linux.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "preload/sidestep.h"
#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/warm.hpp"

#pragma weak sidestep_switch

namespace {

using pair::die;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

struct Stream {
  int in = -1;   ///< tokens are sent here
  int out = -1;  ///< tokens arrive here
  std::atomic<bool> given{false};
  std::atomic<unsigned> wanted{0};  ///< edge: how often a thread was told of this stream
};

class Crowd {
 public:
  Crowd(std::string_view way, size_t threads, size_t streams)
      : way_(way),
        one_each_(way == "read" || way == "alone"),
        threads_(one_each_ ? streams : threads),
        streams_(streams),
        sets_(way == "many" ? threads : 1) {
    connect_all();
    for (int& set : sets_) {
      set = epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{EPOLLIN, {}};
      event.data.u64 = streams;
      if (epoll_ctl(set, EPOLL_CTL_ADD, stop_, &event) != 0) die("epoll_ctl");
    }
    for (size_t i = 0; i < streams; ++i) {
      if (way == "many") {
        for (size_t k = 0; k < 4; ++k) add(sets_[(i + k) % threads], i, EPOLLIN);
      } else if (way != "poll" && !one_each_) {
        add(sets_[0], i, EPOLLIN | (way == "edge" ? EPOLLET : EPOLLONESHOT));
      }
    }
  }

  void run(uint64_t tokens, std::chrono::milliseconds time, bool switching, bool signals) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < threads_; ++i) threads.emplace_back([this, i] { work(i); });
    std::minstd_rand dice(1);
    for (uint64_t token = 1; token <= tokens; ++token) pass_on(token, dice);
    const auto end = Clock::now() + time;
    // On a busy machine it goes on until the streams have been asked to move some times each.
    size_t switches_left = switching ? 5 * streams_.size() : 0;
    while (Clock::now() < end || switches_left != 0) {
      if (switching) sidestep_switch(any(dice).in);
      if (switches_left != 0) --switches_left;
      if (signals) pthread_kill(threads[dice() % threads.size()].native_handle(), SIGUSR1);
      std::this_thread::sleep_for(switching || signals ? 200us : 20ms);
    }
    collecting_ = true;
    // A long limit, since the machine may be busy. The wait ends when all tokens are there.
    for (int i = 0; i < 1000 && collected_ < tokens; ++i) std::this_thread::sleep_for(20ms);
    over_ = true;
    eventfd_write(stop_, 1);
    if (one_each_)
      for (const Stream& stream : streams_) shutdown(stream.in, SHUT_WR);
    const uint64_t lost = tokens - collected_;
    for (std::thread& thread : threads) thread.join();
    std::printf("{\"hops\": %llu, \"lost\": %llu, \"doubled\": %llu, \"wrong\": %llu}\n",
                static_cast<unsigned long long>(hops_), static_cast<unsigned long long>(lost),
                static_cast<unsigned long long>(doubled_), static_cast<unsigned long long>(wrong_));
  }

 private:
  void connect_all() {
    int port = 0;
    const int listener = pair::listen_on_loopback(64, port);
    std::vector<std::pair<int, int>> ends;
    for (Stream& stream : streams_) {
      stream.in = pair::connect_on_loopback(port);
      stream.out = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (stream.out < 0) die("accept");
      ends.emplace_back(stream.in, stream.out);
    }
    close(listener);
    pair::warm(ends);
    for (const Stream& stream : streams_)
      if (way_ != "read" && fcntl(stream.out, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
  }

  void add(int set, size_t stream, uint32_t events) {
    epoll_event event{events, {}};
    event.data.u64 = stream;
    if (epoll_ctl(set, EPOLL_CTL_ADD, streams_[stream].out, &event) != 0) die("epoll_ctl");
  }

  Stream& any(std::minstd_rand& dice) { return streams_[dice() % streams_.size()]; }

  void pass_on(uint64_t token, std::minstd_rand& dice) {
    const int to = any(dice).in;
    ssize_t sent = 0;
    do {
      sent = send(to, &token, sizeof token, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent != sizeof token) die("send");
  }

  /// Takes the tokens that can be read now. Returns false if there are none.
  bool take(Stream& stream, std::minstd_rand& dice) {
    std::array<uint64_t, 16> tokens;
    const ssize_t got = recv(stream.out, tokens.data(), sizeof tokens, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got == 0 && over_) return false;
    if (got <= 0 || got % 8 != 0) {
      ++wrong_;
      return false;
    }
    for (size_t i = 0; i < static_cast<size_t>(got) / 8; ++i) {
      if (collecting_) {
        ++collected_;
      } else {
        ++hops_;
        pass_on(tokens[i], dice);
      }
    }
    return true;
  }

  void told(size_t number, std::minstd_rand& dice) {
    if (number == streams_.size()) return;  // this is stop_
    Stream& stream = streams_[number];
    if (way_ == "oneshot") {
      if (stream.given.exchange(true)) ++doubled_;
      take(stream, dice);
      stream.given = false;
      epoll_event event{EPOLLIN | EPOLLONESHOT, {}};
      event.data.u64 = number;
      if (epoll_ctl(sets_[0], EPOLL_CTL_MOD, stream.out, &event) != 0) die("epoll_ctl");
    } else if (way_ == "edge") {
      // One thread drains the stream. A thread that is told meanwhile makes it look once more.
      if (stream.wanted.fetch_add(1) != 0) return;
      unsigned seen = 1;
      do {
        seen = stream.wanted;
        while (take(stream, dice)) {
        }
      } while (!stream.wanted.compare_exchange_strong(seen, 0));
    } else {
      take(stream, dice);
    }
  }

  void work(size_t number) {
    std::minstd_rand dice(static_cast<unsigned>(number + 2));
    if (way_ == "poll") return work_by_poll(number, dice);
    if (one_each_) return work_for_one(streams_[number], dice);
    const int set = sets_[number % sets_.size()];
    while (!over_) {
      std::array<epoll_event, 8> events;
      const int count = epoll_wait(set, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) told(events[static_cast<size_t>(i)].data.u64, dice);
    }
  }

  void work_for_one(Stream& stream, std::minstd_rand& dice) {
    while (!over_) {
      pollfd fd{stream.out, POLLIN, 0};
      if (way_ == "read" || poll(&fd, 1, -1) > 0) take(stream, dice);
    }
  }

  void work_by_poll(size_t number, std::minstd_rand& dice) {
    std::vector<pollfd> fds;
    for (size_t i = number; i < streams_.size(); i += threads_)
      fds.push_back({streams_[i].out, POLLIN, 0});
    fds.push_back({stop_, POLLIN, 0});
    while (!over_) {
      // No timeout: it would hide a lost wake-up by finding the token.
      if (poll(fds.data(), fds.size(), -1) < 0) continue;
      for (size_t i = 0; i + 1 < fds.size(); ++i)
        if (fds[i].revents != 0) told(number + i * threads_, dice);
    }
  }

  const int stop_ = eventfd(0, EFD_CLOEXEC);
  const std::string way_;
  const bool one_each_;
  const size_t threads_;
  std::vector<Stream> streams_;
  std::vector<int> sets_;
  std::atomic<bool> collecting_{false};
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> hops_{0};
  std::atomic<uint64_t> collected_{0};
  std::atomic<uint64_t> doubled_{0};
  std::atomic<uint64_t> wrong_{0};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fputs(
        "usage: crowd oneshot|edge|many|poll|read|alone THREADS STREAMS TOKENS SECONDS [switching] "
        "[signals]\n",
        stderr);
    return 2;
  }
  const auto number = [&](int at) { return std::strtoul(argv[at], nullptr, 10); };
  const auto has = [&](std::string_view word) {
    return std::find(argv + 6, argv + argc, word) != argv + argc;
  };
  struct sigaction nothing {};
  nothing.sa_handler = [](int) {};
  sigaction(SIGUSR1, &nothing, nullptr);
  Crowd crowd(argv[1], number(2), number(3));
  crowd.run(number(4), std::chrono::milliseconds(1000 * number(5)),
            has("switching") && sidestep_switch != nullptr, has("signals"));
  return 0;
}

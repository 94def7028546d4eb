// What epoll adds to waiting: members, triggers, sets of sets.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/set.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {

CASE(epoll, level_triggered) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN, 1));
  NOTE(set.wait(kLong));
  give(pair.client(), "xy");
  NOTE(set.wait(1000));
  NOTE(set.wait(1000));
  NOTE(take(pair.server(), 1));
  NOTE(set.wait(1000));
  NOTE(take(pair.server(), 1));
  NOTE(set.wait(kLong));
}

CASE(epoll, edge_triggered) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN | EPOLLET, 1));
  NOTE(set.wait(kLong));
  give(pair.client(), "xy");
  NOTE(set.wait(1000));
  NOTE(take(pair.server(), 2));
  give(pair.client(), "z");
  NOTE(set.wait(1000));
}

CASE(epoll, edge_triggered_output_once) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLOUT | EPOLLET, 1));
  NOTE(set.wait(1000));
}

CASE(epoll, edge_triggered_room) {
  Pair pair(true);
  Set set;
  SEE(set.add(pair.client(), EPOLLOUT | EPOLLET, 1));
  NOTE(set.wait(1000));
  const std::string piece = text(10'000);
  size_t total = 0;
  for (;;) {
    const ssize_t sent = send(pair.client(), piece.data(), piece.size(), 0);
    if (sent > 0) total += static_cast<size_t>(sent);
    if (sent < 0 && set.wait(50).empty()) break;
  }
  NOTE(total > 0);
  const Later later(10, [&] { take(pair.server(), total); });
  NOTE(set.wait(5000));
}

CASE(epoll, edge_triggered_end) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN | EPOLLRDHUP | EPOLLET, 1));
  pair.close_client();
  await_end(pair.server());
  NOTE(set.wait(1000));
}

CASE(epoll, oneshot) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN | EPOLLONESHOT, 1));
  give(pair.client(), "x");
  NOTE(set.wait(1000));
  NOTE(set.wait(kLong));
  give(pair.client(), "y");
  NOTE(set.wait(kLong));
  SEE(set.modify(pair.server(), EPOLLIN | EPOLLONESHOT, 2));
  NOTE(set.wait(1000));
  NOTE(set.wait(kLong));
}

CASE(epoll, oneshot_armed_again_without_news) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN | EPOLLONESHOT, 1));
  give(pair.client(), "x");
  NOTE(set.wait(1000));
  NOTE(take(pair.server(), 1));
  SEE(set.modify(pair.server(), EPOLLIN | EPOLLONESHOT, 2));
  NOTE(set.wait(kLong));
  give(pair.client(), "y");
  NOTE(set.wait(1000));
}

CASE(epoll, oneshot_says_nothing_of_the_end) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN | EPOLLONESHOT, 1));
  give(pair.client(), "x");
  NOTE(set.wait(1000));
  pair.close_client();
  await_end(pair.server());
  NOTE(set.wait(kLong));
}

CASE(epoll, exclusive) {
  Pair pair;
  Set first;
  Set second;
  SEE(first.add(pair.server(), EPOLLIN | EPOLLEXCLUSIVE, 1));
  SEE(second.add(pair.server(), EPOLLIN | EPOLLEXCLUSIVE, 2));
  SEE(first.modify(pair.server(), EPOLLIN, 1));
  SEE(first.add(pair.client(), EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
  give(pair.client(), "x");
  NOTE(first.wait(1000));
  NOTE(second.wait(1000));
}

CASE(epoll, members) {
  Pair pair;
  Set set;
  SEE(set.modify(pair.server(), EPOLLIN, 1));
  SEE(set.remove(pair.server()));
  SEE(set.add(pair.server(), EPOLLIN, 1));
  SEE(set.add(pair.server(), EPOLLIN, 1));
  SEE(set.modify(pair.server(), EPOLLOUT, 2));
  NOTE(set.wait(1000));
  SEE(set.modify(pair.server(), 0, 3));
  NOTE(set.wait(kLong));
  SEE(set.remove(pair.server()));
  SEE(set.remove(pair.server()));
  SEE(set.add(pair.server(), EPOLLOUT, 4));
  NOTE(set.wait(1000));
}

CASE(epoll, wrong_arguments) {
  Pair pair;
  Set set;
  SEE(set.add(-1, EPOLLIN, 1));
  SEE(set.add(set.fd(), EPOLLIN, 1));
  epoll_event event{};
  volatile int negative = -1;  // the compiler would reject a constant
  SEE(epoll_ctl(pair.client(), EPOLL_CTL_ADD, pair.server(), &event));
  SEE(epoll_ctl(-1, EPOLL_CTL_ADD, pair.server(), &event));
  SEE(epoll_ctl(set.fd(), 77, pair.server(), &event));
  SEE(epoll_ctl(set.fd(), EPOLL_CTL_ADD, pair.server(), nullptr));
  SEE(set.add(pair.server(), EPOLLIN, 1));
  SEE(epoll_wait(set.fd(), &event, 0, 0));
  SEE(epoll_wait(set.fd(), &event, negative, 0));
  SEE(epoll_wait(pair.server(), &event, 1, 0));
  SEE(epoll_wait(-1, &event, 1, 0));
  timespec wrong{0, -1};
  SEE(epoll_pwait2(set.fd(), &event, 1, &wrong, nullptr));
}

CASE(epoll, members_without_events_learn_of_the_end) {
  Pair pair;
  Set set;
  SEE(set.add(pair.client(), 0, 1));
  NOTE(set.wait(kLong));
  pair.reset_server();
  await_end(pair.client());
  NOTE(set.wait(1000));
}

CASE(epoll, closing_leaves_the_set) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLOUT, 1));
  NOTE(set.wait(1000));
  pair.close_server();
  NOTE(set.wait(kLong));
}

CASE(epoll, closing_one_of_two_descriptors_does_not) {
  Pair pair;
  Set set;
  const int copy = dup(pair.server());
  SEE(set.add(pair.server(), EPOLLOUT, 1));
  pair.close_server();
  NOTE(set.wait(1000));
  close(copy);
  NOTE(set.wait(kLong));
}

CASE(epoll, both_of_two_descriptors) {
  Pair pair;
  Set set;
  const int copy = dup(pair.server());
  SEE(set.add(pair.server(), EPOLLOUT, 1));
  SEE(set.add(copy, EPOLLOUT, 2));
  NOTE(set.wait(1000));
  SEE(set.remove(copy));
  NOTE(set.wait(1000));
  close(copy);
}

CASE(epoll, one_descriptor_in_many_sets) {
  Pair pair;
  Set sets[4];
  for (uint64_t i = 0; i < 4; ++i) SEE(sets[i].add(pair.server(), EPOLLIN, i));
  give(pair.client(), "x");
  for (const Set& set : sets) NOTE(set.wait(1000));
  NOTE(take(pair.server(), 1));
  for (const Set& set : sets) NOTE(set.wait(kLong));
}

CASE(epoll, a_set_in_a_set) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait(kLong));
  give(pair.client(), "x");
  NOTE(outer.wait(1000));
  NOTE(inner.wait(1000));
  NOTE(take(pair.server(), 1));
  NOTE(outer.wait(kLong));
  const Later later(20, [&] { give(pair.client(), "y"); });
  NOTE(outer.wait(5000));
  NOTE(inner.wait(1000));
}

CASE(epoll, a_set_in_poll) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN, 1));
  pollfd one{set.fd(), POLLIN, 0};
  SEE(poll(&one, 1, kLong));
  give(pair.client(), "x");
  SEE(poll(&one, 1, 1000));
  NOTE(take(pair.server(), 1));
  SEE(poll(&one, 1, kLong));
  const Later later(20, [&] { give(pair.client(), "y"); });
  SEE(poll(&one, 1, 5000));
}

CASE(epoll, a_duplicated_set) {
  Pair pair;
  Set set;
  const int copy = dup(set.fd());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 5;
  SEE(epoll_ctl(copy, EPOLL_CTL_ADD, pair.server(), &event));
  give(pair.client(), "x");
  NOTE(set.wait(1000));
  SEE(epoll_wait(copy, &event, 1, 1000));
  NOTE(event.data.u64);
  close(copy);
  NOTE(set.wait(1000));
}

CASE(epoll, mixed_members) {
  Pair first;
  Pair second;
  Set set;
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const int counter = eventfd(0, EFD_CLOEXEC);
  SEE(set.add(first.server(), EPOLLIN, 1));
  SEE(set.add(second.server(), EPOLLIN, 2));
  SEE(set.add(ends[0], EPOLLIN, 3));
  SEE(set.add(counter, EPOLLIN, 4));
  NOTE(set.wait(kLong));
  give(first.client(), "x");
  NOTE(set.wait(1000));
  const uint64_t one = 1;
  SEE(write(counter, &one, sizeof one));
  SEE(write(ends[1], "x", 1));
  await_bytes(first.server(), 1);
  for (int i = 0; i < 8; ++i) NOTE(set.wait(1000));  // no member is left out
  NOTE(take(first.server(), 1));
  NOTE(set.wait(1000));
  for (const int fd : {ends[0], ends[1], counter}) close(fd);
  NOTE(set.wait(kLong));
}

CASE(epoll, room_for_fewer_than_are_ready_of_both_kinds) {
  Pair pairs[3];
  int counters[3];
  Set set;
  for (uint64_t i = 0; i < 3; ++i) {
    SEE(set.add(pairs[i].server(), EPOLLIN, i));
    give(pairs[i].client(), "x");
    await_bytes(pairs[i].server(), 1);
    counters[i] = eventfd(1, EFD_CLOEXEC);
    SEE(set.add(counters[i], EPOLLIN, 10 + i));
  }
  std::set<std::string> seen;
  for (int i = 0; i < 24; ++i) seen.insert(set.wait(1000, 1));
  NOTE(seen.size());
  for (const int counter : counters) close(counter);
}

CASE(epoll, a_number_that_another_file_had) {
  Set set;
  // Adds a socket to be connected later, and one that libc closes.
  const int later = socket(AF_INET, SOCK_STREAM, 0);
  SEE(set.add(later, 0, 1));
  SEE(set.modify(later, EPOLLONESHOT, 1));
  const int first = socket(AF_INET, SOCK_STREAM, 0);
  SEE(set.add(first, EPOLLIN, 2));
  fclose(fdopen(first, "r"));
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  SEE(set.add(ends[0], EPOLLIN, 3));
  SEE(set.modify(ends[0], EPOLLIN, 3));
  fclose(fdopen(ends[0], "r"));
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  int fds[4];
  for (int i = 0; i < 2; ++i) {
    fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    SEE(connect(fds[i], reinterpret_cast<sockaddr*>(&address), length));
    fds[2 + i] = accept(listener, nullptr, nullptr);
    settle(fds[i], fds[2 + i]);
    give(fds[2 + i], "x");
    await_bytes(fds[i], 1);
  }
  close(listener);
  NOTE(set.wait(kLong));
  for (int i = 0; i < 2; ++i) SEE(set.remove(fds[i]));
  for (const int fd : fds) {
    forget(fd);
    close(fd);
  }
  for (const int fd : {later, ends[1]}) close(fd);
}

CASE(epoll, woken_by_a_counter) {
  Pair pair;
  Set set;
  const int counter = eventfd(0, EFD_CLOEXEC);
  SEE(set.add(pair.server(), EPOLLIN, 1));
  SEE(set.add(counter, EPOLLIN, 2));
  {
    const uint64_t one = 1;
    const Later later(20, [&] { (void)!write(counter, &one, sizeof one); });
    NOTE(set.wait(5000));
  }
  close(counter);
}

CASE(epoll, added_while_another_waits) {
  Pair pair;
  Set set;
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  const Later later(20, [&] { set.add(pair.server(), EPOLLIN, 1); });
  NOTE(set.wait(5000));
}

CASE(epoll, modified_while_another_waits) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), 0, 1));
  const Later later(20, [&] { set.modify(pair.server(), EPOLLOUT, 2); });
  NOTE(set.wait(5000));
}

CASE(epoll, threads_with_room_for_one_each) {
  // A third thread owns the doorbells, so it finds what both threads wait for at one look.
  const Neighbour neighbour;
  const Pair first;
  const Pair second;
  for (const unsigned mode : {unsigned{EPOLLONESHOT}, unsigned{EPOLLET}}) {
    const Set set;
    SEE(set.add(first.server(), EPOLLIN | mode, 1));
    SEE(set.add(second.server(), EPOLLIN | mode, 2));
    int late = 0;
    for (int round = 0; round < 30 && late == 0; ++round) {
      const auto wait = [&] {
        epoll_event event{};
        epoll_wait(set.fd(), &event, 1, 10'000);
      };
      const auto start = std::chrono::steady_clock::now();
      std::thread one(wait);
      std::thread another(wait);
      usleep(5000);
      give(first.client(), "x");
      give(second.client(), "x");
      one.join();
      another.join();
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(8)) ++late;
      if (take(first.server(), 1) + take(second.server(), 1) != "xx") ++late;
      if (mode != EPOLLONESHOT) continue;
      set.modify(first.server(), EPOLLIN | mode, 1);
      set.modify(second.server(), EPOLLIN | mode, 2);
    }
    NOTE(late);
  }
}

CASE(epoll, room_for_fewer_than_are_ready) {
  Pair pairs[4];
  Set set;
  for (uint64_t i = 0; i < 4; ++i) {
    SEE(set.add(pairs[i].server(), EPOLLIN, i));
    give(pairs[i].client(), "x");
    await_bytes(pairs[i].server(), 1);
  }
  // No stream starves: in two turns every stream was reported.
  std::set<std::string> seen;
  for (int i = 0; i < 8; ++i) seen.insert(set.wait(1000, 1));
  NOTE(seen.size());
}

CASE(epoll, connecting) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  Set set;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  SEE(set.add(fd, EPOLLOUT, 1));
  connect(fd, reinterpret_cast<sockaddr*>(&address), length);
  // HUP was reported before connect(). The set is level triggered, so HUP is gone now.
  NOTE(set.wait(1000));
  const int accepted = accept(listener, nullptr, nullptr);
  settle(fd, accepted);
  give(accepted, "x");
  await_bytes(fd, 1);
  NOTE(set.wait(1000));
  SEE(set.modify(fd, EPOLLIN, 2));
  NOTE(set.wait(1000));
  for (const int end : {fd, accepted}) {
    forget(end);
    close(end);
  }
  close(listener);
}

CASE(epoll, signals_let_in_for_the_wait) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN, 1));
  sigset_t blocked;
  sigset_t none;
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  SEE(sigprocmask(SIG_BLOCK, &blocked, nullptr));
  {
    const Interruptions interruptions(true);
    epoll_event event{};
    SEE(epoll_wait(set.fd(), &event, 1, 40));
    SEE(epoll_pwait(set.fd(), &event, 1, -1, &none));
    SEE(epoll_pwait2(set.fd(), &event, 1, nullptr, &none));
  }
  const timespec now{0, 0};
  sigtimedwait(&blocked, nullptr, &now);
  SEE(sigprocmask(SIG_UNBLOCK, &blocked, nullptr));
}

}  // namespace conformance

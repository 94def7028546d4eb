// Epoll sets that are themselves watched by other sets, poll and select.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/set.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

int poll_set(const Set& set, int milliseconds) {
  pollfd one{set.fd(), POLLIN, 0};
  return poll(&one, 1, milliseconds);
}

int select_set(const Set& set, int milliseconds) {
  fd_set in;
  FD_ZERO(&in);
  FD_SET(set.fd(), &in);
  timeval time{milliseconds / 1000, milliseconds % 1000 * 1000};
  return select(set.fd() + 1, &in, nullptr, nullptr, &time);
}

}  // namespace

CASE(nested_epoll, level) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait(kLong));
  for (int i = 0; i < 3; ++i) {
    give(pair.client(), "xy");
    NOTE(outer.wait(1000));
    NOTE(outer.wait(1000));
    NOTE(inner.wait(1000));
    NOTE(take(pair.server(), 1));
    NOTE(outer.wait(1000));
    NOTE(take(pair.server(), 1));
    NOTE(outer.wait(kLong));
    NOTE(inner.wait());
  }
}

CASE(nested_epoll, bytes_before_the_set_is_nested) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait(1000));
  NOTE(inner.wait(1000));
}

CASE(nested_epoll, a_member_that_comes_later) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait());
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  NOTE(outer.wait(1000));
  SEE(inner.modify(pair.server(), 0, 1));
  NOTE(outer.wait(kLong));
  SEE(inner.modify(pair.server(), EPOLLIN, 3));
  NOTE(outer.wait(1000));
  NOTE(inner.wait(1000));
}

CASE(nested_epoll, edges_of_the_inner_set) {
  Pair first;
  Pair second;
  Set inner;
  Set outer;
  SEE(inner.add(first.server(), EPOLLIN, 1));
  SEE(inner.add(second.server(), EPOLLIN, 2));
  SEE(outer.add(inner.fd(), EPOLLIN | EPOLLET, 3));
  NOTE(outer.wait(kLong));
  // Nobody collects the events, but each is an edge all the same.
  give(first.client(), "x");
  NOTE(outer.wait(1000));
  give(second.client(), "x");
  NOTE(outer.wait(1000));
  give(first.client(), "y");
  NOTE(outer.wait(1000));
  NOTE(inner.wait(1000));
  NOTE(take(first.server(), 2));
  NOTE(take(second.server(), 1));
  NOTE(inner.wait());
  NOTE(outer.wait(kLong));
  give(second.client(), "z");
  NOTE(outer.wait(1000));
}

CASE(nested_epoll, edges_inside) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN | EPOLLET, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait(kLong));
  for (int i = 0; i < 3; ++i) {
    give(pair.client(), "x");
    NOTE(outer.wait(1000));
    NOTE(outer.wait(1000));
    NOTE(inner.wait(1000));
    NOTE(take(pair.server(), 1));
    NOTE(outer.wait(kLong));
  }
}

CASE(nested_epoll, oneshot_outside) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  SEE(outer.add(inner.fd(), EPOLLIN | EPOLLONESHOT, 2));
  NOTE(outer.wait(kLong));
  give(pair.client(), "x");
  NOTE(outer.wait(1000));
  NOTE(outer.wait(kLong));
  SEE(outer.modify(inner.fd(), EPOLLIN | EPOLLONESHOT, 3));
  NOTE(outer.wait(1000));
  NOTE(inner.wait(1000));
  NOTE(take(pair.server(), 1));
  SEE(outer.modify(inner.fd(), EPOLLIN | EPOLLONESHOT, 4));
  NOTE(outer.wait(kLong));
  give(pair.client(), "y");
  NOTE(outer.wait(1000));
}

CASE(nested_epoll, oneshot_at_both_levels) {
  // The JDK does this for virtual threads.
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN | EPOLLONESHOT, 1));
  SEE(outer.add(inner.fd(), EPOLLIN | EPOLLONESHOT, 2));
  for (int i = 0; i < 5; ++i) {
    const Later later(i * 3, [&] { give(pair.client(), "x"); });
    NOTE(outer.wait(5000));
    NOTE(inner.wait());
    NOTE(inner.wait());
    NOTE(take(pair.server(), 1));
    SEE(inner.modify(pair.server(), EPOLLIN | EPOLLONESHOT, 1));
    NOTE(inner.wait());
    SEE(outer.modify(inner.fd(), EPOLLIN | EPOLLONESHOT, 2));
    NOTE(outer.wait());
  }
}

CASE(nested_epoll, two_levels_deep) {
  Pair pair;
  Set sets[3];
  SEE(sets[0].add(pair.server(), EPOLLIN, 1));
  SEE(sets[1].add(sets[0].fd(), EPOLLIN, 2));
  SEE(sets[2].add(sets[1].fd(), EPOLLIN, 3));
  NOTE(sets[2].wait(kLong));
  for (int i = 0; i < 3; ++i) {
    const Later later(5, [&] { give(pair.client(), "x"); });
    for (const int at : {2, 1, 0}) NOTE(sets[at].wait(5000));
    NOTE(take(pair.server(), 1));
    for (const int at : {2, 1, 0}) NOTE(sets[at].wait(kLong));
  }
}

CASE(nested_epoll, polled_and_selected) {
  Pair pair;
  Set set;
  SEE(set.add(pair.server(), EPOLLIN, 1));
  SEE(poll_set(set, kLong));
  SEE(select_set(set, kLong));
  for (int i = 0; i < 3; ++i) {
    {
      const Later later(5, [&] { give(pair.client(), "x"); });
      SEE(i % 2 == 0 ? poll_set(set, 5000) : select_set(set, 5000));
    }
    SEE(poll_set(set, 0));
    SEE(select_set(set, 0));
    NOTE(set.wait());
    SEE(poll_set(set, 0));
    NOTE(take(pair.server(), 1));
    SEE(poll_set(set, kLong));
    SEE(select_set(set, kLong));
    NOTE(set.wait());
  }
}

CASE(nested_epoll, polled_beside_a_socket) {
  Pair member;
  Pair other;
  Set set;
  SEE(set.add(member.server(), EPOLLIN, 1));
  pollfd fds[] = {{set.fd(), POLLIN, 0}, {other.server(), POLLIN, 0}};
  SEE(poll(fds, 2, kLong));
  for (Pair* pair : {&member, &other}) {
    const Later later(5, [&] { give(pair->client(), "x"); });
    SEE(poll(fds, 2, 5000));
    for (const pollfd& fd : fds) NOTE(fd.revents);
    NOTE(take(pair->server(), 1));
    SEE(poll(fds, 2, kLong));
  }
}

CASE(nested_epoll, polled_outside) {
  Pair pair;
  Set inner;
  Set outer;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  SEE(poll_set(outer, kLong));
  {
    const Later later(5, [&] { give(pair.client(), "x"); });
    SEE(poll_set(outer, 5000));
  }
  NOTE(outer.wait());
  NOTE(take(pair.server(), 1));
  SEE(poll_set(outer, kLong));
}

CASE(nested_epoll, members_of_both_kinds) {
  Pair pair;
  Set inner;
  Set outer;
  const int counters[] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)};
  const uint64_t one = 1;
  uint64_t count = 0;
  SEE(inner.add(pair.server(), EPOLLIN, 1));
  SEE(inner.add(counters[0], EPOLLIN, 2));
  SEE(outer.add(inner.fd(), EPOLLIN, 3));
  SEE(outer.add(counters[1], EPOLLIN, 4));
  NOTE(outer.wait(kLong));
  SEE(write(counters[0], &one, sizeof one));
  NOTE(outer.wait(1000));
  NOTE(inner.wait());
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  SEE(write(counters[1], &one, sizeof one));
  NOTE(outer.wait(1000));
  NOTE(inner.wait());
  SEE(read(counters[0], &count, sizeof count));
  NOTE(outer.wait(1000));
  NOTE(inner.wait());
  NOTE(take(pair.server(), 1));
  NOTE(outer.wait(1000));
  SEE(read(counters[1], &count, sizeof count));
  NOTE(outer.wait(kLong));
  for (const int counter : counters) close(counter);
}

CASE(nested_epoll, members_with_the_same_data) {
  Pair pair;
  Set inner;
  Set outer;
  const int counter = eventfd(0, EFD_CLOEXEC);
  const uint64_t one = 1;
  SEE(inner.add(pair.server(), EPOLLIN, 0));
  SEE(outer.add(inner.fd(), EPOLLIN, 0));
  SEE(outer.add(counter, EPOLLIN | EPOLLET, 0));
  for (int i = 0; i < 3; ++i) {
    // Nobody can tell whose event it is. Around a move there may be one too many, but none is lost.
    SEE(write(counter, &one, sizeof one));
    NOTE(outer.wait(1000).substr(0, 5));
    give(pair.client(), "x");
    NOTE(outer.wait(1000).substr(0, 5));
    NOTE(take(pair.server(), 1));
  }
  close(counter);
}

CASE(nested_epoll, an_end_and_a_reset) {
  Pair ends;
  Pair resets;
  Set inner;
  Set outer;
  SEE(inner.add(ends.server(), EPOLLIN | EPOLLRDHUP, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  {
    const Later later(5, [&] { ends.close_client(); });
    NOTE(outer.wait(5000));
  }
  await_end(ends.server());
  NOTE(inner.wait());
  SEE(inner.remove(ends.server()));
  NOTE(outer.wait(kLong));
  SEE(inner.add(resets.client(), 0, 3));
  NOTE(outer.wait(kLong));
  {
    const Later later(5, [&] { resets.reset_server(); });
    NOTE(outer.wait(5000));
  }
  await_end(resets.client());
  NOTE(inner.wait());
}

CASE(nested_epoll, room) {
  Pair pair(true);
  Set inner;
  Set outer;
  SEE(inner.add(pair.client(), EPOLLOUT, 1));
  SEE(outer.add(inner.fd(), EPOLLIN, 2));
  NOTE(outer.wait(1000));
  const size_t total = fill(pair);
  NOTE(outer.wait(kLong));
  const Later later(5, [&] { take(pair.server(), total); });
  NOTE(outer.wait(5000));
  NOTE(inner.wait(5000));
}

CASE(nested_epoll, closed_members) {
  Pair pairs[2];
  Set inner;
  Set outer;
  for (uint64_t i = 0; i < 2; ++i) SEE(inner.add(pairs[i].server(), EPOLLIN, i));
  SEE(outer.add(inner.fd(), EPOLLIN, 9));
  for (Pair& pair : pairs) {
    give(pair.client(), "x");
    await_bytes(pair.server(), 1);
  }
  NOTE(outer.wait(1000));
  pairs[0].close_server();
  NOTE(outer.wait(1000));
  NOTE(inner.wait());
  pairs[1].close_server();
  NOTE(outer.wait(kLong));
  NOTE(inner.wait());
}

CASE(nested_epoll, removed_and_closed_sets) {
  Pair pair;
  Set outer;
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  {
    Set inner;
    SEE(inner.add(pair.server(), EPOLLIN, 1));
    SEE(outer.add(inner.fd(), EPOLLIN, 2));
    SEE(outer.add(inner.fd(), EPOLLIN, 2));
    NOTE(outer.wait(1000));
    SEE(outer.remove(inner.fd()));
    SEE(outer.remove(inner.fd()));
    SEE(outer.modify(inner.fd(), EPOLLIN, 2));
    NOTE(outer.wait(kLong));
    SEE(outer.add(inner.fd(), EPOLLIN, 3));
    NOTE(outer.wait(1000));
  }
  NOTE(outer.wait(kLong));
  Set inner;  // has the same number
  SEE(inner.add(pair.server(), EPOLLIN, 4));
  NOTE(outer.wait(kLong));
  SEE(outer.add(inner.fd(), EPOLLIN, 5));
  NOTE(outer.wait(1000));
  NOTE(inner.wait());
}

CASE(nested_epoll, a_set_that_lives_on_under_another_number) {
  Pair pair;
  Set outer;
  int copy = -1;
  epoll_event event{};
  {
    Set inner;
    SEE(inner.add(pair.server(), EPOLLIN, 1));
    SEE(outer.add(inner.fd(), EPOLLIN, 2));
    copy = dup(inner.fd());
  }
  NOTE(outer.wait(kLong));
  give(pair.client(), "x");
  NOTE(outer.wait(1000));
  SEE(epoll_wait(copy, &event, 1, 1000));
  NOTE(event.data.u64);
  NOTE(take(pair.server(), 1));
  SEE(epoll_wait(copy, &event, 1, 0));
  NOTE(outer.wait(kLong));
  close(copy);
}

CASE(nested_epoll, circles) {
  Pair pair;
  Set first;
  Set second;
  SEE(first.add(pair.server(), EPOLLIN, 1));
  SEE(first.add(first.fd(), EPOLLIN, 1));
  SEE(second.add(first.fd(), EPOLLIN, 2));
  SEE(first.add(second.fd(), EPOLLIN, 3));
  SEE(first.add(second.fd(), EPOLLIN | EPOLLEXCLUSIVE, 3));
  give(pair.client(), "x");
  NOTE(second.wait(1000));
}

CASE(nested_epoll, threads_that_sleep_at_both_levels) {
  Pair pairs[2];
  Set inner[2];
  Set outer;
  for (uint64_t i = 0; i < 2; ++i) {
    SEE(inner[i].add(pairs[i].server(), EPOLLIN | EPOLLONESHOT, i));
    SEE(outer.add(inner[i].fd(), EPOLLIN | EPOLLONESHOT, 10 + i));
  }
  for (int i = 0; i < 10; ++i) {
    std::string found;
    std::thread other([&] { found = inner[1].wait(5000); });
    give(pairs[0].client(), "x");
    NOTE(outer.wait(5000));
    NOTE(inner[0].wait());
    SEE(outer.remove(inner[1].fd()));
    give(pairs[1].client(), "y");
    other.join();
    NOTE(found);
    for (uint64_t k = 0; k < 2; ++k) {
      NOTE(take(pairs[k].server(), 1));
      SEE(inner[k].modify(pairs[k].server(), EPOLLIN | EPOLLONESHOT, k));
    }
    SEE(outer.modify(inner[0].fd(), EPOLLIN | EPOLLONESHOT, 10));
    SEE(outer.add(inner[1].fd(), EPOLLIN | EPOLLONESHOT, 11));
  }
}

}  // namespace conformance

#include "preload/event_set.hpp"
#include "preload/event_set_table.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using preload::EventSet;
using preload::EventSetTable;
using tests::BoundPair;

namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Set {
  Set() : fd(epoll_create1(EPOLL_CLOEXEC)), set(EventSetTable::find_or_make(fd)) {
    BOOST_REQUIRE(set != nullptr);
  }
  ~Set() {
    EventSetTable::forget(fd);
    close(fd);
  }
  int control(int operation, const tests::TrackedPair& pair, size_t end, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = pair.fd(end);
    return set->control(operation, pair.fd(end), pair.socket(end), &event);
  }
  int wait(epoll_event* events, int64_t timeout) { return set->wait(events, 8, timeout, nullptr); }
  const int fd;
  std::shared_ptr<EventSet> set;
};

ssize_t transmit_byte(preload::Socket& socket) {
  char byte = 'x';
  const iovec part{&byte, 1};
  return socket.transmit(&part, 1, MSG_DONTWAIT);
}

void send_byte(preload::Socket& socket) {
  BOOST_REQUIRE_EQUAL(transmit_byte(socket), 1);
}

/// Sends a byte from another thread. That thread checks nothing: Boost.Test is for one thread.
std::future<ssize_t> send_byte_beside(preload::Socket& socket) {
  return std::async(std::launch::async, [&socket] { return transmit_byte(socket); });
}

void take_byte(preload::Socket& socket) {
  char byte = 0;
  const iovec part{&byte, 1};
  BOOST_REQUIRE_EQUAL(socket.receive(&part, 1, MSG_DONTWAIT), 1);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(event_set)

BOOST_AUTO_TEST_CASE(a_level_is_reported_until_it_is_gone) {
  const BoundPair pair;
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  BOOST_CHECK_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), EEXIST);
  BOOST_CHECK_EQUAL(set.wait(events, 1'000'000), 0);
  send_byte(pair.socket(0));
  for (int i = 0; i < 3; ++i) {
    BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
    BOOST_CHECK_EQUAL(events[0].events, static_cast<uint32_t>(EPOLLIN));
    BOOST_CHECK_EQUAL(events[0].data.fd, pair.fd(1));
  }
  take_byte(pair.socket(1));
  BOOST_CHECK_EQUAL(set.wait(events, 1'000'000), 0);
  BOOST_CHECK_EQUAL(set.control(EPOLL_CTL_DEL, pair, 1, 0), 0);
  BOOST_CHECK_EQUAL(set.control(EPOLL_CTL_MOD, pair, 1, EPOLLIN), ENOENT);
}

BOOST_AUTO_TEST_CASE(those_that_were_told_of_come_behind_those_that_were_not) {
  constexpr size_t kPairs = 5;
  const BoundPair pairs[kPairs];
  Set set;
  epoll_event events[8];
  for (const BoundPair& pair : pairs) {
    BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
    BOOST_REQUIRE_EQUAL(set.wait(events, 0), 0);  // no member is a candidate any more
  }
  for (const BoundPair& pair : pairs) {
    send_byte(pair.socket(0));
    BOOST_REQUIRE(tests::eventually([&] { return (pair.socket(1).readiness() & EPOLLIN) != 0; }));
  }
  BOOST_REQUIRE(tests::eventually([&] { return set.wait(events, 0) == int{kPairs}; }));
  std::vector<int> told;
  while (told.size() < 4 * kPairs) {
    BOOST_REQUIRE_EQUAL(set.set->wait(events, 2, kSecond, nullptr), 2);
    for (const epoll_event& event : {events[0], events[1]}) told.push_back(event.data.fd);
  }
  BOOST_CHECK_EQUAL(std::set<int>(told.begin(), told.begin() + kPairs).size(), kPairs);
  for (size_t i = kPairs; i < told.size(); ++i) BOOST_CHECK_EQUAL(told[i], told[i - kPairs]);
}

BOOST_AUTO_TEST_CASE(events_of_the_kernel_are_in_the_same_list) {
  const BoundPair pair;
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  const int counter = eventfd(1, EFD_CLOEXEC);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = counter;
  BOOST_REQUIRE_EQUAL(epoll_ctl(set.fd, EPOLL_CTL_ADD, counter, &event), 0);
  send_byte(pair.socket(0));
  BOOST_REQUIRE(tests::eventually([&] { return (pair.socket(1).readiness() & EPOLLIN) != 0; }));
  for (int i = 0; i < 8; ++i) BOOST_CHECK_EQUAL(set.wait(events, kSecond), 2);
  // With room for one event, both members take turns.
  int kernels = 0;
  for (int i = 0; i < 16; ++i) {
    BOOST_REQUIRE_EQUAL(set.set->wait(events, 1, kSecond, nullptr), 1);
    kernels += events[0].data.fd == counter ? 1 : 0;
  }
  BOOST_CHECK(kernels >= 4 && kernels <= 12);
  close(counter);
}

BOOST_AUTO_TEST_CASE(a_set_in_a_set_leaves_its_members_on_the_engine) {
  const BoundPair pair;
  Set inner;
  Set outer;
  epoll_event events[8];
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.fd = inner.fd;
  BOOST_REQUIRE_EQUAL(inner.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN | EPOLLONESHOT), 0);
  BOOST_REQUIRE_EQUAL(EventSetTable::control_nested(outer.fd, EPOLL_CTL_ADD, inner.fd, &event), 0);
  BOOST_CHECK_EQUAL(outer.wait(events, 1'000'000), 0);
  for (int i = 0; i < 100; ++i) {
    std::future<ssize_t> sent = send_byte_beside(pair.socket(0));
    BOOST_REQUIRE_EQUAL(outer.wait(events, kSecond), 1);
    BOOST_CHECK_EQUAL(events[0].data.fd, inner.fd);
    BOOST_REQUIRE_EQUAL(inner.wait(events, 0), 1);
    BOOST_CHECK_EQUAL(events[0].data.fd, pair.fd(1));
    BOOST_CHECK_EQUAL(inner.wait(events, 0), 0);
    take_byte(pair.socket(1));
    BOOST_REQUIRE_EQUAL(sent.get(), 1);
    BOOST_REQUIRE_EQUAL(inner.control(EPOLL_CTL_MOD, pair, 1, EPOLLIN | EPOLLONESHOT), 0);
    BOOST_REQUIRE_EQUAL(EventSetTable::control_nested(outer.fd, EPOLL_CTL_MOD, inner.fd, &event),
                        0);
  }
  BOOST_CHECK(pair.stream(1).receiver().carrier() == engine::Carrier::engine);
  BOOST_CHECK_EQUAL(pair.stream(1).receiver().engine_bytes(), 100u);
  BOOST_CHECK(engine::Node::running()->progress().attendance().has_unseen());
  BOOST_CHECK_EQUAL(inner.control(EPOLL_CTL_DEL, pair, 1, 0), 0);
  BOOST_CHECK(!engine::Node::running()->progress().attendance().has_unseen());
}

BOOST_AUTO_TEST_CASE(who_sleeps_past_the_library_in_a_set_of_sets_is_woken) {
  const BoundPair pair;
  Set inner;
  const int outer = epoll_create1(EPOLL_CLOEXEC);
  epoll_event events[8];
  epoll_event event{};
  event.events = EPOLLIN;
  BOOST_REQUIRE_EQUAL(inner.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  BOOST_REQUIRE_EQUAL(EventSetTable::control_nested(outer, EPOLL_CTL_ADD, inner.fd, &event), 0);
  for (int i = 0; i < 20; ++i) {
    std::future<ssize_t> sent = send_byte_beside(pair.socket(0));
    // The sleeper may be woken too early, but not forever, and not for nothing once it has looked.
    int found = 0;
    while (found == 0) {
      BOOST_REQUIRE_EQUAL(::epoll_wait(outer, events, 8, 5000), 1);
      found = inner.wait(events, 0);
    }
    BOOST_CHECK_EQUAL(events[0].data.fd, pair.fd(1));
    take_byte(pair.socket(1));
    BOOST_REQUIRE_EQUAL(sent.get(), 1);
    BOOST_CHECK_EQUAL(inner.wait(events, 0), 0);
    BOOST_CHECK_EQUAL(::epoll_wait(outer, events, 8, 2), 0);
  }
  EventSetTable::forget(outer);
  close(outer);
}

BOOST_AUTO_TEST_CASE(an_edge_is_reported_once) {
  const BoundPair pair;
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN | EPOLLET), 0);
  // Adding the member makes a look due. That look could find the byte before the byte's own event,
  // which, as in the kernel, would then be reported as another edge.
  BOOST_REQUIRE_EQUAL(set.wait(events, 1'000'000), 0);
  send_byte(pair.socket(0));
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  BOOST_CHECK_EQUAL(set.wait(events, 5'000'000), 0);
  send_byte(pair.socket(0));
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
}

BOOST_AUTO_TEST_CASE(a_stream_that_nobody_has_used_is_left_to_the_kernels_set) {
  const tests::TrackedPair pair(true);
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN | EPOLLOUT | EPOLLET), 0);
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  BOOST_REQUIRE(tests::eventually([&] { return pair.stream(1).is_bound(); }));
  BOOST_CHECK(pair.socket(1).is_native());
  BOOST_CHECK_EQUAL(set.wait(events, 5'000'000), 0);  // no second edge for room
  pair.stream(1).receiver().note_reading();
  BOOST_CHECK(!pair.socket(1).is_native());
  send_byte(pair.socket(0));
  // From now on the set may report the room again, at any time.
  do BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  while ((events[0].events & EPOLLIN) == 0);
}

BOOST_AUTO_TEST_CASE(a_member_that_leaves_the_kernels_set_is_told_of_once) {
  const BoundPair ready;
  const tests::TrackedPair moving(true);  // in the kernel's set until it is used
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, ready, 1, EPOLLIN), 0);
  send_byte(ready.socket(0));
  BOOST_REQUIRE(tests::eventually([&] { return (ready.socket(1).readiness() & EPOLLIN) != 0; }));
  BOOST_REQUIRE(tests::eventually([&] { return moving.stream(1).is_bound(); }));
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, moving, 1, EPOLLOUT), 0);
  // This fills the caller's list. The next list begins with what the kernel reports.
  BOOST_REQUIRE_EQUAL(set.set->wait(events, 1, kSecond, nullptr), 1);
  BOOST_REQUIRE_EQUAL(events[0].data.fd, ready.fd(1));
  moving.stream(1)
      .receiver()
      .note_reading();  // from now on the engine has the stream, and news of it
  for (int i = 0; i < 3; ++i) {
    BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 2);
    BOOST_CHECK_NE(events[0].data.fd, events[1].data.fd);
  }
}

BOOST_AUTO_TEST_CASE(a_lost_stream_that_is_read_on_the_anchor_has_an_edge_when_that_ends) {
  tests::TrackedPair pair(true);
  pair.stream(0).receiver().note_reading();  // the peer may move what it sends, but never does
  pair.stream(1).receiver().note_reading();
  BOOST_REQUIRE(tests::eventually([&] { return !pair.stream(0).receiver().is_complete(); }));
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 0, EPOLLIN | EPOLLET), 0);
  BOOST_CHECK_EQUAL(set.wait(events, 10'000'000), 0);
  engine::Node::running()->streams().lose_connection(
      *pair.stream(0).connection(), "the peer process ended", engine::PeerProcess::ended);
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
  BOOST_CHECK_EQUAL(set.wait(events, 10'000'000), 0);
  ::shutdown(pair.fd(1), SHUT_WR);
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
}

BOOST_AUTO_TEST_CASE(oneshot_is_silent_until_it_is_armed_again) {
  const BoundPair pair;
  Set set;
  epoll_event events[8];
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN | EPOLLONESHOT), 0);
  send_byte(pair.socket(0));
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  send_byte(pair.socket(0));
  BOOST_CHECK_EQUAL(set.wait(events, 5'000'000), 0);
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_MOD, pair, 1, EPOLLIN | EPOLLONESHOT), 0);
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
}

BOOST_AUTO_TEST_CASE(a_oneshot_that_the_kernel_reported_stays_silent_when_the_stream_moves) {
  Set set;
  epoll_event events[8];
  const tests::TrackedPair pair(true);  // in the kernel's set until it is used
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLOUT | EPOLLONESHOT), 0);
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  BOOST_REQUIRE(tests::eventually([&] { return pair.stream(1).is_bound(); }));
  pair.stream(1).sender().note_writing();
  BOOST_CHECK(!pair.socket(1).is_native());
  BOOST_CHECK_EQUAL(set.wait(events, 5'000'000), 0);
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_MOD, pair, 1, EPOLLOUT | EPOLLONESHOT), 0);
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
}

BOOST_AUTO_TEST_CASE(a_oneshot_that_is_armed_after_the_stream_has_moved_looks_at_the_engine) {
  Set set;
  epoll_event events[8];
  const tests::TrackedPair pair(true);  // in the kernel's set until it is used
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLOUT | EPOLLONESHOT), 0);
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  pair.stream(0).sender().note_writing();
  pair.stream(1).receiver().note_reading();
  BOOST_REQUIRE(tests::eventually(
      [&] { return pair.stream(0).sender().carrier() == engine::Carrier::engine; }));
  send_byte(pair.socket(0));
  BOOST_REQUIRE(tests::eventually([&] { return (pair.socket(1).readiness() & EPOLLIN) != 0; }));
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_MOD, pair, 1, EPOLLIN | EPOLLONESHOT), 0);
  BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  BOOST_CHECK((events[0].events & EPOLLIN) != 0);
}

BOOST_AUTO_TEST_CASE(a_socket_that_ends_leaves_its_sets) {
  Set set;
  epoll_event events[8];
  {
    const BoundPair pair;
    BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
    send_byte(pair.socket(0));
    BOOST_REQUIRE_EQUAL(set.wait(events, kSecond), 1);
  }
  BOOST_CHECK_EQUAL(set.wait(events, 1'000'000), 0);
}

BOOST_AUTO_TEST_CASE(a_membership_ends_with_the_number_and_is_nobody_elses) {
  BoundPair pair;
  const BoundPair other;
  Set set;
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  const int fd = pair.fd(1);
  epoll_event event{EPOLLIN, {}};
  // A thread whose new socket got the number can get as far as this while the old one is closed.
  for (const int operation : {EPOLL_CTL_MOD, EPOLL_CTL_DEL})
    BOOST_CHECK_EQUAL(set.set->control(operation, fd, other.socket(1), &event), ENOENT);
  preload::Socket& socket = pair.socket(1);
  {
    const preload::SocketRef inside(fd);
    pair.close_end(1);
    BOOST_CHECK_EQUAL(set.set->control(EPOLL_CTL_MOD, fd, socket, &event), ENOENT);
  }
}

BOOST_AUTO_TEST_CASE(a_member_that_another_thread_changes_while_it_is_added) {
  tests::TrackedPair pair;
  Set set;
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_REQUIRE(tests::eventually([&] { return pair.socket(1).is_native(); }));
  std::atomic<bool> done{false};
  std::thread changes([&] {
    while (!done) set.control(EPOLL_CTL_MOD, pair, 1, EPOLLIN);
  });
  int wrong = 0;
  for (int i = 0; i < 20'000 && wrong == 0; ++i) {
    wrong = set.control(EPOLL_CTL_ADD, pair, 1, 0);
    if (wrong == 0) wrong = set.control(EPOLL_CTL_DEL, pair, 1, 0);
  }
  done = true;
  changes.join();
  BOOST_CHECK_EQUAL(wrong, 0);
}

BOOST_AUTO_TEST_CASE(a_membership_that_ends_while_it_begins_leaves_the_others_alone) {
  const BoundPair pair;
  Set set;
  Set other;  // its watch is in the same list
  BOOST_REQUIRE_EQUAL(other.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  std::atomic<bool> done{false};
  std::thread ends([&] {
    while (!done) set.control(EPOLL_CTL_DEL, pair, 1, 0);
  });
  for (int i = 0; i < 100'000; ++i) set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN);
  done = true;
  ends.join();
  set.control(EPOLL_CTL_DEL, pair, 1, 0);
  send_byte(pair.socket(0));
  epoll_event events[8];
  BOOST_CHECK_EQUAL(other.wait(events, kSecond), 1);
  BOOST_CHECK_EQUAL(other.control(EPOLL_CTL_DEL, pair, 1, 0), 0);
  BOOST_CHECK(pair.socket(1).stream().watches().empty());
}

BOOST_AUTO_TEST_CASE(nothing_becomes_a_member_of_a_set_that_was_closed) {
  const BoundPair pair;
  Set set;
  EventSetTable::forget(set.fd);  // close() is about to follow while a thread is inside a call
  BOOST_CHECK_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), EBADF);
  BOOST_CHECK(pair.socket(1).stream().watches().empty());
}

BOOST_AUTO_TEST_CASE(a_set_that_was_closed_past_the_library_is_no_more) {
  const BoundPair pair;
  Set set;
  BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, pair, 1, EPOLLIN), 0);
  set.set.reset();
  EventSetTable::note_created(set.fd);  // another set has the number
  BOOST_CHECK(pair.socket(1).stream().watches().empty());
}

BOOST_AUTO_TEST_CASE(the_end_of_a_membership_leaves_a_number_in_new_hands_alone) {
  tests::TrackedPair pair;
  Set set;
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_REQUIRE(tests::eventually([&] { return pair.socket(1).is_native(); }));
  preload::Socket& socket = pair.socket(1);
  const int first = dup(pair.fd(1));
  socket.add_fd();
  preload::FdTable::set(first, socket);
  epoll_event event{EPOLLIN, {}};
  event.data.fd = first;
  BOOST_REQUIRE_EQUAL(set.set->control(EPOLL_CTL_ADD, first, socket, &event), 0);
  preload::FdTable::take(first);
  socket.remove_fd(first);
  int other[2];
  BOOST_REQUIRE_EQUAL(pipe2(other, O_CLOEXEC), 0);
  BOOST_REQUIRE_EQUAL(dup2(other[0], first), first);  // closes the old file
  BOOST_REQUIRE_EQUAL(epoll_ctl(set.fd, EPOLL_CTL_ADD, first, &event), 0);
  pair.close_end(1);
  BOOST_REQUIRE_EQUAL(write(other[1], "x", 1), 1);
  epoll_event events[8];
  BOOST_CHECK_EQUAL(set.wait(events, kSecond), 1);
  for (const int fd : {first, other[0], other[1]}) close(fd);
}

BOOST_AUTO_TEST_CASE(a_busy_thread_does_not_keep_another_one_of_the_set_asleep) {
  const BoundPair first;
  const BoundPair second;
  Set set;
  for (const BoundPair* pair : {&first, &second})
    BOOST_REQUIRE_EQUAL(set.control(EPOLL_CTL_ADD, *pair, 1, EPOLLIN | EPOLLONESHOT), 0);
  std::atomic<int> handled{0};
  std::atomic<int> returned{0};
  // Each thread takes one event and is then busy until the other has taken one as well.
  const auto take_one = [&] {
    epoll_event events[1];
    if (set.set->wait(events, 1, 5 * kSecond, nullptr) != 1) return;
    returned.fetch_add(1);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (returned < 2 && std::chrono::steady_clock::now() < limit)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (returned == 2) handled.fetch_add(1);
  };
  std::thread one(take_one);
  std::thread two(take_one);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // both sleep by now
  send_byte(first.socket(0));
  while (returned == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  send_byte(second.socket(0));
  one.join();
  two.join();
  BOOST_CHECK_EQUAL(handled, 2);
}

BOOST_AUTO_TEST_SUITE_END()

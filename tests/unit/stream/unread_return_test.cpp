// Bytes that came by the engine and go back to their sender, so that any holder of the descriptor
// finds them in the kernel.
#include <sys/ioctl.h>

#include <boost/test/unit_test.hpp>

#include "preload/residue.hpp"
#include "preload/socket_lifecycle.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/socket_text.hpp"

using namespace sidestep;
using namespace sidestep::tests;
using engine::Carrier;
using engine::Phase;

namespace {

/// Returns what a process reads that has the descriptor but not Sidestep.
std::string read_past_the_shim(int fd, size_t length) {
  std::string data(length, 0);
  size_t done = 0;
  BOOST_CHECK(eventually([&] {
    const ssize_t got = ::recv(fd, data.data() + done, length - done, MSG_DONTWAIT);
    if (got > 0) done += static_cast<size_t>(got);
    return done == length;
  }));
  return data.substr(0, done);
}

size_t in_kernel(int fd) {
  int queued = 0;
  ioctl(fd, FIONREAD, &queued);
  return static_cast<size_t>(queued);
}

/// Closes end 0 while "unread", which it has sent, is still unread at end 1. Checks that end 1 then
/// finds these bytes in the kernel, and the end behind them.
void close_while_it_holds(BoundPair& pair) {
  pair.stream(1).request_down(engine::Reason::fork, true);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().awaits_return(); }));
  pair.close_end(0);
  BOOST_CHECK(pair.socket(1).hands_over(engine::Reason::fork));
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 6), "unread");
  char byte = 0;
  BOOST_CHECK(eventually([&] { return ::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT) == 0; }));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(unread_return)

BOOST_AUTO_TEST_CASE(unread_bytes_come_by_the_kernel) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_CHECK_EQUAL(pair.socket(1).unread_residue(), 0u);
  BOOST_CHECK_EQUAL(in_kernel(pair.fd(1)), 6u);  // already now: others need not wait
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), " and more"), 9);
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 15), "unread and more");
}

BOOST_AUTO_TEST_CASE(what_the_kernel_has_behind_them_stays_behind_them) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine,"), 7);
  pair.stream(0).request_down(engine::Reason::none);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::kernel; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "kernel,"), 7);
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "later"), 5);
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 19), "engine,kernel,later");
}

BOOST_AUTO_TEST_CASE(both_ends_at_once) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "one"), 3);
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "other"), 5);
  preload::AllSockets::bring_all_down(engine::Reason::fork);
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 3), "one");
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(0), 5), "other");
  for (const size_t end : {0u, 1u}) {
    BOOST_CHECK(eventually([&] { return pair.stream(end).phase() == Phase::kernel; }));
    BOOST_CHECK(!pair.stream(end).sender().has_replay());
  }
}

BOOST_AUTO_TEST_CASE(nothing_unread_holds_nobody_up) {
  const BoundPair pair;
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_CHECK(eventually([&] { return !pair.stream(0).sender().has_replay(); }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "x"), 1);
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 1), "x");
}

BOOST_AUTO_TEST_CASE(who_held_moves_up_again_behind_what_was_kept) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine, "), 8);
  pair.stream(1).request_down(engine::Reason::none, true);  // not for good
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().awaits_return(); }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "kept, "), 6);
  // The reader comes to the mark and is ready again before it has answered the hold.
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 14), "engine, kept, ");
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "engine");
}

BOOST_AUTO_TEST_CASE(who_closes_before_they_are_back_sends_them_all_the_same) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  pair.stream(0).request_down(engine::Reason::fork);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).phase() == Phase::kernel; }));
  close_while_it_holds(pair);
}

BOOST_AUTO_TEST_CASE(who_shuts_down_before_they_are_back_ends_behind_them) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  pair.stream(0).request_down(engine::Reason::fork);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).phase() == Phase::kernel; }));
  pair.stream(1).request_down(engine::Reason::fork, true);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().awaits_return(); }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), " and more"), 9);
  BOOST_CHECK_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_CHECK(pair.socket(1).hands_over(engine::Reason::fork));
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 15), "unread and more");
  char byte = 0;
  BOOST_CHECK(eventually([&] { return ::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT) == 0; }));
}

BOOST_AUTO_TEST_CASE(nothing_is_handed_over_before_the_peer_has_come_down) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "before, "), 8);
  pair.stream(0).sender().mutex().lock();  // as if its process were stopped
  BOOST_CHECK(!pair.socket(1).hands_over(engine::Reason::fork, 0));
  pair.stream(0).sender().unlock();
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "after"), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 13), "before, after");
  BOOST_CHECK(pair.socket(1).hands_over(engine::Reason::fork));
}

BOOST_AUTO_TEST_CASE(an_end_behind_them_comes_behind_them) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  pair.socket(1).leave_engine(engine::Reason::fork);
  pair.close_end(0);
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 6), "unread");
  char byte = 0;
  BOOST_CHECK(eventually([&] { return ::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT) == 0; }));
}

BOOST_AUTO_TEST_CASE(what_the_sender_has_ended_stays_where_only_this_process_reads_it) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  pair.close_end(0);
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_CHECK_EQUAL(pair.socket(1).unread_residue(), 6u);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "unread");
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(an_end_before_which_they_are_unread_comes_behind_them) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().peer_has_finished(); }));
  BOOST_CHECK(pair.stream(1).anchor_state() == engine::TcpState::established);
  BOOST_CHECK(pair.socket(1).hands_over(engine::Reason::fork));
  BOOST_CHECK_EQUAL(read_past_the_shim(pair.fd(1), 6), "unread");
  char byte = 0;
  BOOST_CHECK(eventually([&] { return ::recv(pair.fd(1), &byte, 1, MSG_DONTWAIT) == 0; }));
  for (const size_t end : {0u, 1u})
    BOOST_CHECK(eventually([&] { return pair.stream(end).phase() == Phase::kernel; }));
  BOOST_REQUIRE_EQUAL(::send(pair.fd(1), "answer", 6, 0), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 6), "answer");
}

BOOST_AUTO_TEST_CASE(who_closes_behind_an_end_that_comes_back_sends_them_all_the_same) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  close_while_it_holds(pair);
}

BOOST_AUTO_TEST_CASE(an_end_of_which_everything_was_read_is_the_anchors) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "read"), 4);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().peer_has_finished(); }));
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 4), "read");
  BOOST_CHECK(
      eventually([&] { return pair.stream(1).anchor_state() == engine::TcpState::close_wait; }));
  BOOST_CHECK(is_at_end(pair.socket(1)));
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_CHECK(eventually([&] { return pair.stream(1).phase() == Phase::kernel; }));
  BOOST_CHECK(is_at_end(pair.socket(1)));
}

BOOST_AUTO_TEST_CASE(whoever_brings_an_ended_direction_down_ends_its_anchor) {
  for (const size_t end : {0u, 1u}) {
    const BoundPair pair;
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
    BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
    BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().peer_has_finished(); }));
    pair.stream(end).request_down(engine::Reason::fork);
    BOOST_CHECK(
        eventually([&] { return pair.stream(1).anchor_state() == engine::TcpState::close_wait; }));
    BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "unread");
    BOOST_CHECK(is_at_end(pair.socket(1)));
    BOOST_CHECK(eventually([&] { return pair.stream(1).phase() == Phase::kernel; }));
    BOOST_CHECK(is_at_end(pair.socket(1)));
  }
}

BOOST_AUTO_TEST_CASE(a_second_shutdown_finds_both_ends) {
  const BoundPair pair;
  for (const size_t end : {0u, 1u}) {
    BOOST_REQUIRE_EQUAL(send(pair.socket(end), "unread"), 6);
    BOOST_REQUIRE_EQUAL(pair.socket(end).shutdown(SHUT_WR), 0);
  }
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).receiver().peer_has_finished(); }));
  BOOST_CHECK_EQUAL(pair.socket(0).shutdown(SHUT_WR), -1);
  BOOST_CHECK_EQUAL(errno, ENOTCONN);
}

BOOST_AUTO_TEST_CASE(what_others_send_on_the_same_anchor_stays_behind) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine,"), 7);
  pair.socket(0).leave_engine(engine::Reason::fork);
  // This is a child of the sender: nobody can count what it sends, or hold it back.
  BOOST_REQUIRE_EQUAL(::send(pair.fd(0), "child,", 6, 0), 6);
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "parent"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 19), "engine,child,parent");
}

BOOST_AUTO_TEST_CASE(more_than_the_kernel_takes_at_once_comes_as_it_is_read) {
  const BoundPair pair;
  std::string data;
  for (int i = 0; data.size() < 600'000; ++i) data += std::to_string(i) + " ";
  size_t sent = 0;
  while (sent < data.size()) {
    const ssize_t n = send(pair.socket(0), data.substr(sent));
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  pair.socket(1).leave_engine(engine::Reason::fork);
  BOOST_CHECK_EQUAL(pair.socket(1).unread_residue(), 0u);
  const bool same = read_past_the_shim(pair.fd(1), sent) == data.substr(0, sent);
  BOOST_CHECK(same);
}

BOOST_AUTO_TEST_SUITE_END()

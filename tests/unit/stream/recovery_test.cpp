#include "engine/stream/recovery.hpp"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <string>

#include "engine/base/clock.hpp"
#include "engine/connection/connection.hpp"
#include "engine/manager/manager.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/break_endpoint.hpp"
#include "tests/support/socket_text.hpp"

using namespace sidestep;
using namespace sidestep::engine;
using tests::BoundPair;
using tests::eventually;
using tests::eventually_within;
using tests::is_at_end;
using tests::receive_all;
using tests::send;
using tests::TrackedPair;

namespace {

/// Makes the connection fail behind what the program sends in `before`. Nobody polls any of that.
template <typename Before>
void fail_unseen(Connection& connection, Before before) {
  Node::running()
      ->progress()
      .recv_lock()
      .lock();  // nobody polls or closes the connection meanwhile
  before();
  tests::break_endpoint(connection);
  Node::running()->progress().recv_lock().unlock();
  BOOST_REQUIRE(connection.endpoint().is_broken());
}

bool is_down(BoundPair& pair) {
  return eventually([&] {
    for (const size_t end : {0u, 1u}) pair.stream(end).is_down();  // takes the marks, like a reader
    return pair.stream(0).phase() == Phase::kernel && pair.stream(1).phase() == Phase::kernel;
  });
}

bool is_waiting_to_return(BoundPair& pair) {
  return eventually([&] {
    for (const size_t end : {0u, 1u}) pair.stream(end).is_down();
    return pair.stream(0).phase() == Phase::undecided && pair.stream(1).phase() == Phase::undecided;
  });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(recovery)

BOOST_AUTO_TEST_CASE(what_the_peer_has_not_confirmed_goes_out_over_the_anchor) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "confirmed"), 9);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().queued() == 9; }));
  const std::string block(100'000, 'u');
  fail_unseen(*pair.stream(0).connection(), [&] {
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), block), static_cast<ssize_t>(block.size()));
    BOOST_REQUIRE_EQUAL(send(pair.socket(1), "and back"), 8);
  });
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 9), "confirmed");
  BOOST_CHECK(receive_all(pair.socket(1), block.size()) == block);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 8), "and back");
  BOOST_REQUIRE(is_down(pair));
  BOOST_CHECK(pair.stream(0).reason() == Reason::connection_failed);
  BOOST_CHECK_EQUAL(pair.stream(0).sender().engine_bytes(), 9u);
  BOOST_CHECK_EQUAL(pair.stream(0).sender().kernel_bytes(), block.size());
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "goes on"), 7);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 7), "goes on");
  pair.close_end(0);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(more_than_the_anchor_takes_at_once_is_sent_by_and_by_and_closed_behind) {
  BoundPair pair;
  std::string sent;
  fail_unseen(*pair.stream(0).connection(), [&] {
    const std::string block(64 * 1024, 'v');
    for (ssize_t n; (n = send(pair.socket(0), block)) > 0;)
      sent.append(block, 0, static_cast<size_t>(n));
  });
  BOOST_REQUIRE(!sent.empty());
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::kernel; }));
  pair.close_end(0);
  BOOST_CHECK(receive_all(pair.socket(1), sent.size()) == sent);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(one_end_has_settled_on_the_kernel_and_the_other_has_not_read_so_far) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "unread"), 6);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().queued() == 6; }));
  pair.stream(0).request_down(Reason::fork);
  BOOST_REQUIRE(eventually([&] {
    pair.stream(0).is_down();  // takes the marks, like a reader
    return pair.stream(0).phase() == Phase::kernel;
  }));
  BOOST_REQUIRE(pair.stream(1).is_bound());
  Connection& connection = *pair.stream(1).connection();
  fail_unseen(connection, [] {});
  BOOST_REQUIRE(eventually([&] {
    Node::running()->progress().recv_lock().lock();
    const bool failed_over = connection.is_closed() && !connection.awaits_report;
    Node::running()->progress().recv_lock().unlock();
    return failed_over;
  }));
  BOOST_CHECK(!pair.stream(1).is_aborted());
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "unread");
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "goes on"), 7);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 7), "goes on");
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "and back"), 8);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 8), "and back");
  BOOST_CHECK(is_down(pair));
}

BOOST_AUTO_TEST_CASE(an_anchor_that_ends_first_waits_for_the_report_of_the_peer) {
  BoundPair pair;
  Node& node = *Node::running();
  Stream& stream = pair.stream(0);
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "by the engine"), 13);
  BOOST_REQUIRE(eventually([&] { return stream.receiver().queued() == 13; }));
  Connection& connection = *stream.connection();
  node.streams().fail_connection(connection, "a test");
  const uint64_t before = now_ns();
  node.streams().anchor_event(stream.id(), stream.generation(), EPOLLRDHUP);
  node.streams().check_suspects(before);  // this check began before the event
  BOOST_CHECK(!stream.is_aborted());
  constexpr uint64_t kLong = 60'000'000'000;
  node.streams().check_suspects(before + kLong);
  BOOST_CHECK(stream.is_aborted());
  node.streams().lose_connection(connection, "the test is over", PeerProcess::may_live);
}

BOOST_AUTO_TEST_CASE(a_direction_that_had_ended_completely_stays_ended) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "last words"), 10);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().peer_has_finished(); }));
  fail_unseen(*pair.stream(0).connection(),
              [&] { BOOST_REQUIRE_EQUAL(send(pair.socket(1), "answer"), 6); });
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 6), "answer");
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 10), "last words");
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(an_ended_direction_brings_what_is_missing_before_its_end) {
  BoundPair pair;
  fail_unseen(*pair.stream(0).connection(), [&] {
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), "lost"), 4);
    BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  });
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 4), "lost");
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "answer"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 6), "answer");
}

BOOST_AUTO_TEST_CASE(who_closes_behind_an_end_still_brings_what_is_missing) {
  BoundPair pair;
  const Connection& connection = *pair.stream(0).connection();
  const std::string block(200'000, 'x');  // more than the anchor takes at once
  fail_unseen(*pair.stream(0).connection(), [&] {
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), block), static_cast<ssize_t>(block.size()));
    BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  });
  BOOST_REQUIRE(eventually([&] { return connection.is_closed(); }));
  pair.close_end(0);
  BOOST_CHECK(receive_all(pair.socket(1), block.size()) == block);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(a_closed_direction_with_bytes_missing_never_looks_complete) {
  BoundPair pair;
  Stream& sender = pair.stream(0);
  fail_unseen(*sender.connection(), [&] {
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), "lost"), 4);
    sender.sender().mutex().lock();  // as close() does: the anchor waits for nobody
    BOOST_REQUIRE(sender.sender().finish_locked());
    sender.sender().unlock();
  });
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).is_aborted(); }));
  char byte = 0;
  const iovec part{&byte, 1};
  BOOST_CHECK_EQUAL(pair.socket(1).receive(&part, 1, MSG_DONTWAIT), -1);
  BOOST_CHECK_EQUAL(errno, ECONNRESET);
  BOOST_CHECK(eventually([&] { return sender.is_aborted(); }));
}

BOOST_AUTO_TEST_CASE(a_new_stream_gets_a_new_connection) {
  {
    BoundPair pair;
    fail_unseen(*pair.stream(0).connection(), [] {});
    BOOST_REQUIRE(is_down(pair));
  }
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "again"), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 5), "again");
  BOOST_CHECK_EQUAL(pair.stream(0).sender().engine_bytes(), 5u);
}

// ---- a connection that made way

BOOST_AUTO_TEST_CASE(a_stream_comes_back_when_it_is_used_again) {
  BoundPair pair;
  const std::string block(50'000, 'w');
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), block), static_cast<ssize_t>(block.size()));
  BOOST_CHECK(receive_all(pair.socket(1), block.size()) == block);
  fail_unseen(*pair.stream(0).connection(), [&] { pair.stream(0).connection()->makes_way = true; });
  BOOST_REQUIRE(is_waiting_to_return(pair));
  BOOST_CHECK(!eventually_within(1200, [&] { return pair.stream(0).is_bound(); }));
  for (const size_t end : {0u, 1u}) {
    BOOST_REQUIRE_EQUAL(send(pair.socket(end), "by TCP"), 6);
    BOOST_CHECK_EQUAL(receive_all(pair.socket(1 - end), 6), "by TCP");
  }
  BOOST_REQUIRE(eventually([&] { return pair.is_up(); }));
  const uint64_t before = pair.stream(0).sender().engine_bytes();
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), block), static_cast<ssize_t>(block.size()));
  BOOST_CHECK(receive_all(pair.socket(1), block.size()) == block);
  BOOST_CHECK_EQUAL(pair.stream(0).sender().engine_bytes(), before + block.size());
  pair.close_end(0);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(a_stream_that_was_told_to_stay_does_not_come_back) {
  for (const bool later : {false, true}) {
    BoundPair pair;
    if (!later) pair.stream(1).request_down(Reason::fork);
    fail_unseen(*pair.stream(0).connection(),
                [&] { pair.stream(0).connection()->makes_way = true; });
    if (later) {
      BOOST_REQUIRE(is_waiting_to_return(pair));
      pair.stream(1).request_down(Reason::fork);
    }
    BOOST_REQUIRE(eventually([&] { return pair.stream(1).phase() == Phase::kernel; }));
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), "by TCP"), 6);
    BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "by TCP");
    BOOST_CHECK(!eventually_within(1500, [&] { return pair.stream(1).is_bound(); }));
  }
}

BOOST_AUTO_TEST_CASE(a_stream_of_which_a_direction_has_ended_does_not_come_back) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_REQUIRE(eventually([&] { return is_at_end(pair.socket(1)); }));
  fail_unseen(*pair.stream(0).connection(), [&] { pair.stream(0).connection()->makes_way = true; });
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "by TCP"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 6), "by TCP");
  BOOST_CHECK(!eventually_within(1500, [&] {
    return pair.stream(0).phase() == Phase::undecided || pair.stream(1).phase() == Phase::undecided;
  }));
  pair.close_end(1);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(0)); }));
}

BOOST_AUTO_TEST_CASE(a_stream_that_was_on_the_kernel_ends_there_when_the_connection_is_lost) {
  for (const bool close : {false, true}) {
    BoundPair pair;
    pair.stream(0).request_down(Reason::fork);
    BOOST_REQUIRE(is_down(pair));
    Node::running()->streams().lose_connection(*pair.stream(0).connection(),
                                               "the peer process ended", PeerProcess::ended);
    if (close) {
      pair.close_end(0);
    } else {
      BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
    }
    BOOST_CHECK_MESSAGE(eventually([&] { return is_at_end(pair.socket(1)); }), close);
  }
}

BOOST_AUTO_TEST_CASE(an_end_that_a_gone_peer_has_marked_is_no_error) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "last words"), 10);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().peer_has_finished(); }));
  Node::running()->streams().lose_connection(*pair.stream(1).connection(), "the peer process ended",
                                             PeerProcess::ended);
  BOOST_CHECK(pair.stream(0).is_aborted());  // its peer has not said that this is all
  BOOST_CHECK(!pair.stream(1).is_aborted());
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 10), "last words");
  BOOST_CHECK(is_at_end(pair.socket(1)));
  // It is up to the kernel to say whether anybody is there to read this.
  BOOST_CHECK_EQUAL(send(pair.socket(1), "answer"), 6);
  BOOST_CHECK_EQUAL(pair.stream(1).sender().kernel_bytes(), 6u);
}

BOOST_AUTO_TEST_CASE(directions_that_a_gone_peer_has_left_to_the_anchor_are_the_anchors) {
  BoundPair pair;
  pair.stream(0).request_down(Reason::none);
  BOOST_REQUIRE(eventually([&] {
    return pair.stream(0).sender().carrier() == Carrier::kernel &&
           pair.stream(1).sender().carrier() == Carrier::kernel;
  }));
  for (const size_t end : {0u, 1u}) pair.stream(end).connection()->endpoint().leave();
  Node::running()->streams().lose_connection(*pair.stream(0).connection(), "the peer process ended",
                                             PeerProcess::ended);
  for (const size_t end : {0u, 1u}) {
    BOOST_REQUIRE_EQUAL(send(pair.socket(end), "by TCP"), 6);
    BOOST_CHECK_EQUAL(receive_all(pair.socket(1 - end), 6), "by TCP");
  }
  pair.close_end(0);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(a_direction_that_a_killed_peer_may_have_moved_is_not_the_anchors) {
  enum class Way { killed_before_the_go, killed, left };
  for (const Way way : {Way::killed_before_the_go, Way::killed, Way::left}) {
    TrackedPair pair;
    Stream& survivor = pair.stream(0);
    // The peer never writes, so it does not move the direction. The survivor can't know that.
    if (way != Way::killed_before_the_go) survivor.receiver().note_reading();
    pair.stream(1).receiver().note_reading();
    BOOST_REQUIRE(eventually([&] {
      return survivor.is_bound() && pair.stream(1).is_bound() &&
             survivor.receiver().is_complete() == (way == Way::killed_before_the_go);
    }));
    if (way == Way::left) pair.stream(1).connection()->endpoint().leave();
    Node::running()->streams().lose_connection(*survivor.connection(), "the peer process ended",
                                               PeerProcess::ended);
    BOOST_CHECK_EQUAL(survivor.is_aborted(), way == Way::killed);
    // The peer's anchor may end a moment later, and in order: the peer had read everything there.
    char byte = 0;
    const iovec part{&byte, 1};
    BOOST_CHECK_EQUAL(pair.socket(0).receive(&part, 1, MSG_DONTWAIT), -1);
    BOOST_CHECK_EQUAL(errno, EAGAIN);
    ::shutdown(pair.fd(1), SHUT_WR);
    if (way == Way::killed) {
      BOOST_CHECK_EQUAL(pair.socket(0).receive(&part, 1, MSG_DONTWAIT), -1);
      BOOST_CHECK_EQUAL(errno, ECONNRESET);
    }
    BOOST_CHECK(is_at_end(pair.socket(0)));
  }
}

BOOST_AUTO_TEST_CASE(what_was_handed_back_and_is_not_out_yet_goes_out_all_the_same) {
  const BoundPair pair;
  const int little = 1;
  BOOST_REQUIRE_EQUAL(setsockopt(pair.fd(0), SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
  const std::string block(900'000, 'b');
  for (size_t done = 0; done < block.size();) {
    const ssize_t n = send(pair.socket(0), block.substr(done));
    BOOST_REQUIRE_GT(n, 0);
    done += static_cast<size_t>(n);
  }
  pair.socket(1).leave_engine(Reason::fork);
  BOOST_REQUIRE(pair.stream(0).sender().has_replay());
  BOOST_REQUIRE(!pair.stream(0).sender().awaits_return());
  fail_unseen(*pair.stream(0).connection(), [] {});
  BOOST_CHECK(receive_all(pair.socket(1), block.size()) == block);
  BOOST_CHECK(eventually([&] { return !pair.stream(0).sender().has_replay(); }));
}

BOOST_AUTO_TEST_CASE(reports_survive_their_journey) {
  std::vector<StreamReport> reports(1000);
  for (uint32_t i = 0; i < reports.size(); ++i) reports[i] = {i, i + 1, i + 2u, i + 3u, 1, 0};
  const int fd = write_reports(reports);
  BOOST_REQUIRE_GE(fd, 0);
  const std::vector<StreamReport> read = read_reports(fd);
  BOOST_REQUIRE_EQUAL(read.size(), reports.size());
  BOOST_CHECK_EQUAL(read[999].received, 1002u);
  BOOST_REQUIRE_EQUAL(ftruncate(fd, 33), 0);
  BOOST_CHECK(read_reports(fd).empty());
  close(fd);
  BOOST_CHECK(read_reports(-1).empty());
}

BOOST_AUTO_TEST_SUITE_END()

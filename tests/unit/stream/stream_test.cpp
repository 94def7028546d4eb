#include "engine/stream/stream.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/base/tcp_counts.hpp"
#include "engine/node/status.hpp"
#include "tests/support/bound_pair.hpp"
#include "tests/support/socket_text.hpp"

using namespace sidestep;
using namespace sidestep::engine;
using tests::BoundPair;
using tests::eventually;
using tests::eventually_within;
using tests::is_at_end;
using tests::receive;
using tests::receive_all;
using tests::send;
using tests::TrackedPair;

namespace {

/// True if an epoll set of this process has `fd` as a member.
bool is_watched(int fd) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream info(entry.path());
    for (std::string line; std::getline(info, line);) {
      int member = -1;
      if (std::sscanf(line.c_str(), "tfd: %d", &member) == 1 && member == fd) return true;
    }
  }
  return false;
}

/// Returns the number of the node's streams, closed or not.
size_t streams() {
  Node& node = *Node::running();
  node.progress().recv_lock().lock();
  const size_t count = node.streams().table().all().size();
  node.progress().recv_lock().unlock();
  return count;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stream)

BOOST_AUTO_TEST_CASE(both_ends_in_one_process_leave_the_kernel) {
  const BoundPair pair;
  BOOST_CHECK(pair.stream(0).connection() == pair.stream(1).connection());
  BOOST_CHECK_EQUAL(pair.stream(0).connection()->peer().nid, Node::running()->nid());
  BOOST_CHECK_EQUAL(send(pair.socket(0), "there"), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 5), "there");
  BOOST_CHECK_EQUAL(send(pair.socket(1), "and back"), 8);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 8), "and back");
  BOOST_CHECK_EQUAL(pair.stream(0).sender().engine_bytes(), 5u);
  BOOST_CHECK_EQUAL(pair.stream(0).receiver().engine_bytes(), 8u);
  BOOST_CHECK_EQUAL(
      pair.stream(0).sender().kernel_bytes() + pair.stream(0).receiver().kernel_bytes(), 0u);
}

BOOST_AUTO_TEST_CASE(bytes_sent_before_the_move_come_first) {
  TrackedPair pair(true);
  pair.stream(1).receiver().note_reading();
  std::string sent;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    sent += letter;
    BOOST_REQUIRE_EQUAL(send(pair.socket(0), std::string(1, letter)), 1);
  }
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), sent.size() + 6), sent + "engine");
  BOOST_CHECK_GE(pair.stream(1).receiver().engine_bytes(), 6u);
}

BOOST_AUTO_TEST_CASE(peeked_bytes_stay_on_either_carrier_and_across_the_switch) {
  TrackedPair pair(true);
  pair.stream(1).receiver().note_reading();
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "kernel"), 6);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "engine"), 6);
  BOOST_CHECK_EQUAL(receive(pair.socket(1), 3, MSG_PEEK), "ker");
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "kernel");
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().queued() == 6; }));
  BOOST_CHECK_EQUAL(receive(pair.socket(1), 100, MSG_PEEK), "engine");
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "engine");
}

BOOST_AUTO_TEST_CASE(a_direction_that_nobody_uses_through_the_shim_stays_on_the_kernel) {
  TrackedPair pair(true);
  const auto both_bound = [&] { return pair.stream(0).is_bound() && pair.stream(1).is_bound(); };
  BOOST_REQUIRE(eventually(both_bound));  // even though nobody has read
  BOOST_REQUIRE_EQUAL(::send(pair.fd(0), "past the shim", 13, 0), 13);
  char text[14] = {};
  BOOST_CHECK_EQUAL(::recv(pair.fd(1), text, 13, MSG_WAITALL), 13);
  BOOST_CHECK_EQUAL(std::string(text), "past the shim");
  // The other direction is used through the shim.
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "by the shim"), 11);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 11), "by the shim");
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).sender().carrier() == Carrier::engine; }));
  // Only written to, and then only read.
  BOOST_CHECK(pair.stream(0).sender().carrier() == Carrier::kernel);
  BOOST_REQUIRE_EQUAL(::send(pair.fd(0), "again", 5, 0), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 5), "again");
  BOOST_CHECK(
      !eventually_within(50, [&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
}

BOOST_AUTO_TEST_CASE(what_tcp_has_been_given_beyond_a_count) {
  constexpr uint64_t kUnknown = ~uint64_t{0};
  const auto fds = tests::connect_loopback();
  for (const size_t end : {0u, 1u}) {
    const auto excess = [&](uint64_t own) {
      return tcp_excess(fds[end], end == 1, own).value_or(kUnknown);
    };
    BOOST_CHECK_EQUAL(excess(0), 0u);
    BOOST_REQUIRE_EQUAL(::send(fds[end], "0123456789", 10, 0), 10);
    BOOST_CHECK_EQUAL(excess(0), 10u);
    BOOST_CHECK_EQUAL(excess(9), 1u);
    BOOST_CHECK_EQUAL(excess(10), 0u);
    BOOST_CHECK_EQUAL(excess(11), 0u);
    close(fds[end]);
    BOOST_CHECK_EQUAL(excess(0), kUnknown);
  }
}

BOOST_AUTO_TEST_CASE(an_end_that_waits_in_the_kernel_is_no_byte_past_the_shim) {
  const BoundPair pair;
  pair.stream(0).request_down(Reason::none);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::kernel; }));
  const std::string piece(100'000, 'k');
  size_t sent = 0;
  while (pair.stream(0).sender().carrier() == Carrier::kernel) {
    const ssize_t taken = send(pair.socket(0), piece);
    if (taken < 0) break;  // there is no room for more
    sent += static_cast<size_t>(taken);
  }
  receive_all(pair.socket(1), 3);  // receive-ready
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  // Each read makes room for more bytes, and the receiving end is told of these.
  for (size_t left = sent - 3; left != 0;) {
    const size_t part = std::min<size_t>(left, 30'000);
    BOOST_REQUIRE_EQUAL(receive_all(pair.socket(1), part).size(), part);
    left -= part;
    BOOST_REQUIRE(!eventually_within(1, [&] { return pair.stream(1).is_aborted(); }));
  }
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(bytes_that_go_past_the_shim_before_the_reader_has_come_to_the_move) {
  const BoundPair pair;
  pair.stream(0).request_down(Reason::none);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::kernel; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "kernel"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 3), "ker");
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::engine; }));
  BOOST_REQUIRE_EQUAL(::send(pair.fd(0), "past the shim", 13, 0), 13);
  BOOST_CHECK(!eventually_within(50, [&] { return pair.stream(1).is_aborted(); }));
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 3), "nel");
  receive(pair.socket(1));
  BOOST_CHECK(
      eventually([&] { return pair.stream(0).is_aborted() && pair.stream(1).is_aborted(); }));
}

BOOST_AUTO_TEST_CASE(bytes_that_go_past_the_shim_after_the_move_end_the_stream) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "before"), 6);
  BOOST_REQUIRE_EQUAL(::send(pair.fd(0), "past the shim", 13, 0), 13);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "before");
  BOOST_CHECK(
      eventually([&] { return pair.stream(0).is_aborted() && pair.stream(1).is_aborted(); }));
  for (const size_t end : {0u, 1u}) {
    char byte = 0;
    const iovec part{&byte, 1};
    errno = 0;
    BOOST_CHECK_EQUAL(pair.socket(end).receive(&part, 1, MSG_DONTWAIT), -1);
    BOOST_CHECK_EQUAL(errno, ECONNRESET);
  }
}

BOOST_AUTO_TEST_CASE(a_move_down_with_unread_bytes_keeps_their_order_and_the_door_reopens) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "by engine,"), 10);
  pair.stream(0).request_down(Reason::none);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).sender().carrier() == Carrier::kernel; }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "by kernel,"), 10);
  BOOST_CHECK_EQUAL(pair.stream(0).sender().kernel_bytes(), 10u);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 20), "by engine,by kernel,");
  BOOST_REQUIRE(eventually([&] {
    receive(pair.socket(0));  // ready when it reaches the switch
    return pair.is_up();
  }));
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "again"), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 5), "again");
  BOOST_CHECK_EQUAL(pair.stream(0).sender().engine_bytes(), 15u);
}

BOOST_AUTO_TEST_CASE(a_move_down_for_good_takes_both_ends_to_the_kernel) {
  const BoundPair pair;
  pair.stream(1).request_down(Reason::fork);
  BOOST_REQUIRE(eventually([&] {
    receive(pair.socket(0));
    receive(pair.socket(1));
    return pair.stream(0).phase() == Phase::kernel && pair.stream(1).phase() == Phase::kernel;
  }));
  BOOST_CHECK(pair.stream(1).reason() == Reason::fork);
  BOOST_CHECK(pair.stream(0).reason() == Reason::peer_moved_it);
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "kernel"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 6), "kernel");
  BOOST_CHECK_EQUAL(pair.stream(0).sender().kernel_bytes(), 6u);
  BOOST_CHECK(pair.socket(0).is_native());
}

BOOST_AUTO_TEST_CASE(packets_of_a_stream_that_has_left_for_good_wake_no_thread_of_the_engine) {
  const BoundPair pair;
  BOOST_CHECK(is_watched(pair.fd(0)) && is_watched(pair.fd(1)));
  pair.socket(1).leave_engine(Reason::fork);
  BOOST_CHECK(eventually([&] {
    for (const size_t end : {0u, 1u}) {
      receive(pair.socket(end));
      send(pair.socket(end), "x");
    }
    return !is_watched(pair.fd(0)) && !is_watched(pair.fd(1));
  }));
}

BOOST_AUTO_TEST_CASE(half_close_delivers_everything_and_leaves_the_other_direction) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "last words"), 10);
  BOOST_REQUIRE_EQUAL(pair.socket(0).shutdown(SHUT_WR), 0);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 10), "last words");
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
  BOOST_CHECK_EQUAL(send(pair.socket(0), "x"), -1);
  BOOST_CHECK_EQUAL(errno, EPIPE);
  BOOST_REQUIRE_EQUAL(send(pair.socket(1), "answer"), 6);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(0), 6), "answer");
  pair.close_end(1);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(0)); }));
}

BOOST_AUTO_TEST_CASE(close_is_an_end_of_file_behind_the_last_byte) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "bye"), 3);
  pair.close_end(0);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 3), "bye");
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(close_with_unread_bytes_resets_the_peer) {
  BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "never read"), 10);
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).receiver().queued() == 10; }));
  pair.close_end(1);
  BOOST_REQUIRE(eventually([&] { return pair.stream(0).is_aborted(); }));
  char byte = 0;
  const iovec part{&byte, 1};
  BOOST_CHECK_EQUAL(pair.socket(0).receive(&part, 1, MSG_DONTWAIT), -1);
  BOOST_CHECK_EQUAL(errno, ECONNRESET);
}

BOOST_AUTO_TEST_CASE(streams_that_a_reset_has_ended_are_freed) {
  const BoundPair other;  // keeps the connection open
  BOOST_REQUIRE(eventually([&] { return streams() == 2; }));
  for (const size_t resets : {0u, 1u}) {
    for (const bool used : {true, false}) {
      BoundPair pair;
      if (used) {
        BOOST_REQUIRE_EQUAL(send(pair.socket(1 - resets), "never read"), 10);
        BOOST_REQUIRE(eventually([&] { return pair.stream(resets).receiver().queued() == 10; }));
      } else {
        // Only the anchor has anything to report.
        pair.stream(0).request_down(Reason::none);
        BOOST_REQUIRE(eventually([&] {
          return pair.stream(0).sender().carrier() == Carrier::kernel &&
                 pair.stream(1).sender().carrier() == Carrier::kernel;
        }));
        BOOST_REQUIRE_EQUAL(send(pair.socket(1 - resets), "never read"), 10);
      }
      pair.close_end(resets);
      char byte = 0;
      const iovec part{&byte, 1};
      BOOST_CHECK(eventually([&] {
        return pair.socket(1 - resets).receive(&part, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET;
      }));
      pair.close_end(1 - resets);
      BOOST_CHECK_MESSAGE(eventually([&] { return streams() == 2; }),
                          streams() << " streams, " << resets << ' ' << used);
    }
  }
}

BOOST_AUTO_TEST_CASE(streams_that_are_closed_on_the_kernel_are_freed) {
  const BoundPair other;  // keeps the connection open
  BOOST_REQUIRE(eventually([&] { return streams() == 2; }));
  const auto is_settled = [](Stream& stream) { return stream.phase() == Phase::kernel; };
  for (const size_t first : {0u, 1u}) {
    // What the end that is closed first has been through. The other end always settles before.
    for (const char* const what : {"settled", "settled, shut", "shut", "asked", "not asked"}) {
      BoundPair pair;
      const std::string_view before = what;
      Stream& stream = pair.stream(first);
      const auto shut = [&] { BOOST_CHECK_EQUAL(pair.socket(first).shutdown(SHUT_WR), 0); };
      if (before == "shut") shut();
      if (before != "not asked") stream.request_down(Reason::fork);
      if (before.starts_with("settled"))
        BOOST_REQUIRE(
            eventually([&] { return is_settled(stream) && is_settled(pair.stream(1 - first)); }));
      if (before == "settled, shut") shut();
      pair.close_end(first);
      BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1 - first)); }));
      pair.close_end(1 - first);
      BOOST_CHECK_MESSAGE(eventually([&] { return streams() == 2; }),
                          streams() << " streams, " << what << ", first " << first);
    }
  }
}

BOOST_AUTO_TEST_CASE(who_is_closed_on_the_kernel_leaves_the_stream_to_others) {
  BoundPair pair;
  pair.stream(0).request_down(Reason::fork);
  BOOST_REQUIRE(eventually(
      [&] { return pair.stream(0).phase() == Phase::kernel && pair.stream(1).is_down(); }));
  const int heir = dup(pair.fd(0));  // as a child after fork() has it
  pair.close_end(0);
  BOOST_REQUIRE(eventually([&] { return streams() == 1; }));
  BOOST_CHECK_EQUAL(write(heir, "later", 5), 5);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), 5), "later");
  BOOST_CHECK_EQUAL(send(pair.socket(1), "answer"), 6);
  char answer[6];
  BOOST_CHECK_EQUAL(read(heir, answer, sizeof answer), 6);
  BOOST_CHECK(!pair.stream(1).receiver().peer_has_finished());
  BOOST_CHECK_EQUAL(pair.socket(1).readiness() & (POLLRDHUP | POLLHUP | POLLERR), 0u);
  close(heir);
  BOOST_CHECK(eventually([&] { return is_at_end(pair.socket(1)); }));
}

BOOST_AUTO_TEST_CASE(bytes_for_a_closed_socket_and_the_end_behind_them_concern_no_other_stream) {
  const BoundPair other;
  const uint64_t lost = Node::running()->counted().connections_lost;
  for (int i = 0; i < 20; ++i) {
    BoundPair pair;
    pair.close_end(1);
    send(pair.socket(0), "too late");
    pair.close_end(0);
    for (int poll = 0; poll < 3; ++poll) Node::running()->progress().poll();
  }
  BOOST_REQUIRE_EQUAL(send(other.socket(0), "goes on"), 7);
  BOOST_CHECK_EQUAL(receive_all(other.socket(1), 7), "goes on");
  BOOST_CHECK_EQUAL(Node::running()->counted().connections_lost, lost);
}

BOOST_AUTO_TEST_CASE(an_anchor_that_was_ended_behind_the_shim_is_noticed) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(::shutdown(pair.socket(0).anchor(), SHUT_WR), 0);
  // The peer is asked for its end mark but has none, so the stream must not look complete.
  BOOST_REQUIRE(eventually([&] { return pair.stream(1).is_aborted(); }));
  char byte = 0;
  const iovec part{&byte, 1};
  BOOST_CHECK_EQUAL(pair.socket(1).receive(&part, 1, MSG_DONTWAIT), -1);
  BOOST_CHECK_EQUAL(errno, ECONNRESET);
}

BOOST_AUTO_TEST_CASE(a_sender_stops_at_the_window_and_goes_on_when_it_was_read) {
  const BoundPair pair;
  const std::string block(64 * 1024, 'w');
  uint64_t sent = 0;
  for (ssize_t count; (count = send(pair.socket(0), block)) > 0;)
    sent += static_cast<uint64_t>(count);
  BOOST_CHECK_LE(sent, Node::running()->config().window_size);
  BOOST_CHECK_GT(sent, Node::running()->config().window_size / 2);
  BOOST_CHECK_EQUAL(receive_all(pair.socket(1), sent), std::string(sent, 'w'));
  BOOST_CHECK(eventually([&] { return send(pair.socket(0), block) > 0; }));
}

BOOST_AUTO_TEST_CASE(a_reader_that_does_not_read_does_not_stop_other_streams) {
  const BoundPair slow;
  const BoundPair quick;
  const std::string block(64 * 1024, 's');
  while (send(slow.socket(0), block) > 0) {
  }
  for (int i = 0; i < 100; ++i) {
    std::string text(100'000, static_cast<char>('a' + i % 26));
    size_t sent = 0;
    std::string received;
    BOOST_REQUIRE(eventually([&] {
      if (sent < text.size())
        if (const ssize_t count = send(quick.socket(0), text.substr(sent)); count > 0)
          sent += static_cast<size_t>(count);
      received += receive(quick.socket(1), 100'000);
      return received.size() == text.size();
    }));
    BOOST_REQUIRE(received == text);
  }
}

BOOST_AUTO_TEST_CASE(the_status_names_every_number_twice_and_lists_the_streams) {
  const BoundPair pair;
  BOOST_REQUIRE_EQUAL(send(pair.socket(0), "count me"), 8);
  receive_all(pair.socket(1), 8);
  const auto status = nlohmann::json::parse(status_json(*Node::running(), true));
  BOOST_CHECK_EQUAL(status.at("pid"), getpid());
  BOOST_CHECK_EQUAL(status.at("nid"), Node::running()->nid());
  for (const std::string name :
       {"streams.total", "streams.engine", "bytes.tx.engine", "bytes.rx.engine", "bytes.tx.kernel",
        "bytes.rx.kernel", "switches.up", "switches.down"}) {
    std::string path = "/" + name;
    std::replace(path.begin(), path.end(), '.', '/');
    BOOST_CHECK_MESSAGE(status.at(name) == status.at(nlohmann::json::json_pointer(path)), name);
  }
  BOOST_CHECK_GE(status.at("streams.engine"), 2);
  BOOST_CHECK_GE(status.at("bytes.tx.engine"), 8);
  BOOST_CHECK(status.at("kernel_reasons").is_object());
  BOOST_CHECK_GE(status.at("connections").size(), 1u);
  bool listed = false;
  for (const auto& entry : status.at("open_streams")) {
    if (entry.at("local") != to_string(pair.stream(0).tuple().local)) continue;
    listed = true;
    BOOST_CHECK_EQUAL(entry.at("remote"), to_string(pair.stream(0).tuple().remote));
    BOOST_CHECK_EQUAL(entry.at("tx").at("carrier"), "engine");
    BOOST_CHECK_EQUAL(entry.at("tx").at("state"), "engine");
    BOOST_CHECK_EQUAL(entry.at("rx").at("state"), "ready");
    BOOST_CHECK_EQUAL(entry.at("tx").at("engine"), 8);
  }
  BOOST_CHECK(listed);
  const auto brief = nlohmann::json::parse(status_json(*Node::running(), false));
  BOOST_CHECK(!brief.contains("open_streams"));
}

BOOST_AUTO_TEST_SUITE_END()

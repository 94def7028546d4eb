// Which thread waits for the doorbells and answers them while threads of the program sleep.
#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "engine/progress/wait.hpp"
#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using engine::Parking;
using tests::BoundPair;

namespace {

void send_byte(const BoundPair& pair) {
  char byte = 'x';
  const iovec part{&byte, 1};
  BOOST_REQUIRE_EQUAL(pair.socket(0).transmit(&part, 1, MSG_DONTWAIT), 1);
}

/// Waits until end 1 is readable, without polling the engine.
bool becomes_readable(const BoundPair& pair) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while ((pair.socket(1).readiness() & EPOLLIN) == 0) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(parking)

BOOST_AUTO_TEST_CASE(one_that_is_alone_owns_the_doorbells) {
  const BoundPair starts_the_node;
  engine::Node& node = *engine::Node::running();
  {
    std::optional<Parking> first(std::in_place, node.progress(), true);
    BOOST_CHECK_EQUAL(first->bells().size(), 1);
    const Parking second(node.progress(), true);
    BOOST_CHECK(second.bells().empty());
    first.reset();
    BOOST_CHECK(
        node.progress().attendance().is_attended());  // by the progress thread, for `second`
    const Parking third(node.progress(), true);
    BOOST_CHECK(third.bells().empty());
  }
  {
    const Parking can_not(node.progress());
    BOOST_CHECK(can_not.bells().empty());
    BOOST_CHECK(node.progress().attendance().is_attended());
  }
  const Parking again(node.progress(), true);
  BOOST_CHECK_EQUAL(again.bells().size(), 1);
}

BOOST_AUTO_TEST_CASE(a_ring_that_another_peer_has_taken_away_is_made_up_for) {
  // Every peer has the doorbell. One thread sleeps and owns it, or two threads do.
  engine::Node& node = *engine::Node::running();
  constexpr size_t kRounds = 20;
  // This makes readers park, since whoever polls next has something else to do. Otherwise their
  // peer would wake them.
  node.progress().posting().count_starved(1);
  for (const size_t sleepers : {1U, 2U}) {
    const BoundPair pairs[2] = {BoundPair(false), BoundPair(false)};
    std::atomic<size_t> received{0};
    std::atomic<bool> gives_up{false};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < sleepers; ++i)
      threads.emplace_back([&, i] {
        char byte = 0;
        const iovec part{&byte, 1};
        for (size_t n = 0; n < kRounds && pairs[i].socket(1).receive(&part, 1, 0) == 1; ++n)
          ++received;
      });
    const auto within = [](auto holds) {
      for (int i = 0; i < 5000 && !holds(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return holds();
    };
    for (size_t round = 1; round <= kRounds && !gives_up; ++round) {
      BOOST_CHECK(within(
          [&] { return node.progress().attendance().parked() == static_cast<int>(sleepers); }));
      // This takes the ring away before a thread that it would wake has got a processor.
      pairs[0].stream(0).connection()->endpoint().ring_if_parked();
      for (const auto& device : node.progress().devices()) device->clear_event();
      for (size_t i = 0; i < sleepers; ++i) send_byte(pairs[i]);
      gives_up = !within([&] { return received == round * sleepers; });
    }
    BOOST_CHECK(!gives_up);
    node.progress().drain();
    for (size_t i = 0; gives_up && i < sleepers; ++i) pairs[i].socket(0).shutdown(SHUT_WR);
    for (std::thread& thread : threads) thread.join();
  }
  node.progress().posting().count_starved(-1);
  node.progress().attendance().disarm();
}

BOOST_AUTO_TEST_CASE(the_doorbell_owner_is_rung_and_dispatches) {
  const BoundPair pair;
  Parking owner(engine::Node::running()->progress(), true);
  std::vector<pollfd> bells(owner.bells().begin(), owner.bells().end());
  send_byte(pair);
  BOOST_REQUIRE_EQUAL(poll(bells.data(), bells.size(), 5000), 1);
  BOOST_CHECK(owner.answer(bells, [] { return false; }));
  BOOST_CHECK((pair.socket(1).readiness() & EPOLLIN) != 0);
  BOOST_CHECK_EQUAL(poll(bells.data(), bells.size(), 0), 0);
  BOOST_CHECK(!owner.answer(bells, [] { return false; }));
}

BOOST_AUTO_TEST_CASE(what_the_doorbell_owner_leaves_is_for_the_next) {
  const BoundPair pair;
  engine::Node& node = *engine::Node::running();
  std::optional<Parking> owner(std::in_place, node.progress(), true);
  const Parking sleeps(node.progress(), true);
  std::vector<pollfd> bells(owner->bells().begin(), owner->bells().end());
  send_byte(pair);
  BOOST_REQUIRE_EQUAL(poll(bells.data(), bells.size(), 5000), 1);
  owner.reset();  // it goes on for another reason and has not seen the ring
  BOOST_CHECK(becomes_readable(pair));
}

BOOST_AUTO_TEST_CASE(a_doorbell_owner_that_does_not_answer_is_stood_in_for) {
  const BoundPair pair;
  const Parking stopped(engine::Node::running()->progress(), true);
  BOOST_REQUIRE_EQUAL(stopped.bells().size(), 1);
  send_byte(pair);
  BOOST_CHECK(becomes_readable(pair));
}

BOOST_AUTO_TEST_SUITE_END()

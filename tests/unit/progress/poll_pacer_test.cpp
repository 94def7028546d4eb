#include "engine/progress/poll_pacer.hpp"

#include <boost/test/unit_test.hpp>
#include <thread>

using sidestep::engine::PollPacer;

BOOST_AUTO_TEST_SUITE(poll_pacer)

namespace {

/// Counts receives as fast as this machine can. There are many windows, since one in which the
/// thread is preempted may look slow.
bool becomes_paced(PollPacer& pacer) {
  for (int i = 0; i < 64 * 1000 && !pacer.is_paced(); ++i) pacer.polled(1);
  return pacer.is_paced();
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_flood_of_receives_paces_the_polls_and_a_small_batch_ends_it) {
  PollPacer pacer;
  BOOST_CHECK(!pacer.is_paced());
  BOOST_REQUIRE(becomes_paced(pacer));
  pacer.wait_turn();
  pacer.polled(32);
  BOOST_CHECK(pacer.is_paced());
  pacer.polled(3);
  BOOST_CHECK(!pacer.is_paced());
  BOOST_CHECK(becomes_paced(pacer));
}

BOOST_AUTO_TEST_CASE(request_and_response_is_never_paced) {
  PollPacer pacer;
  for (int i = 0; i < 300; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    pacer.polled(1);
    BOOST_REQUIRE(!pacer.is_paced());
  }
}

BOOST_AUTO_TEST_CASE(polls_that_find_nothing_pace_nothing) {
  PollPacer pacer;
  for (int i = 0; i < 10000; ++i) pacer.polled(0);
  BOOST_CHECK(!pacer.is_paced());
}

BOOST_AUTO_TEST_SUITE_END()

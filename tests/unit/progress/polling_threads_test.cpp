#include "engine/progress/polling_threads.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <thread>

#include "engine/base/counters.hpp"

using sidestep::engine::CountersOfProcessors;
using sidestep::engine::PollingThreads;

BOOST_AUTO_TEST_SUITE(polling_threads)

BOOST_AUTO_TEST_CASE(one_that_is_away_polls_and_does_not_look) {
  PollingThreads threads;
  BOOST_CHECK_EQUAL(threads.all(), 0U);
  threads.enter();
  threads.enter();
  BOOST_CHECK(!threads.pause());
  BOOST_CHECK_EQUAL(threads.all(), 2U);
  BOOST_CHECK_EQUAL(threads.looking(), 1U);
  threads.resume();
  BOOST_CHECK_EQUAL(threads.looking(), 2U);
}

BOOST_AUTO_TEST_CASE(the_last_one_that_looks_is_told_so) {
  PollingThreads threads;
  threads.enter();
  threads.enter();
  BOOST_CHECK(!threads.leave());
  BOOST_CHECK(threads.pause());
  threads.enter();
  BOOST_CHECK(threads.leave());  // the other thread is still away
  threads.resume();
  BOOST_CHECK(threads.leave());
  BOOST_CHECK_EQUAL(threads.all(), 0U);
  BOOST_CHECK_EQUAL(threads.looking(), 0U);
}

BOOST_AUTO_TEST_CASE(what_all_processors_have_counted_is_summed_up) {
  constexpr uint64_t kTimes = 10'000;
  CountersOfProcessors counters;
  {
    std::array<std::jthread, 4> threads;
    for (std::jthread& thread : threads)
      thread = std::jthread([&counters] {
        for (uint64_t i = 0; i < kTimes; ++i) counters.here().yields.add();
      });
  }
  BOOST_CHECK_EQUAL(counters.sum().yields, 4 * kTimes);
  BOOST_CHECK_EQUAL(counters.sum().parks, 0U);
}

BOOST_AUTO_TEST_SUITE_END()

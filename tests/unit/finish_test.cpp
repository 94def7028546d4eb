// What a process does for its streams when it ends.
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <list>
#include <thread>

#include "engine/manager/manager.hpp"
#include "preload/socket_lifecycle.hpp"
#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using tests::BoundPair;
using tests::eventually;

BOOST_AUTO_TEST_SUITE(finish)

BOOST_AUTO_TEST_CASE(a_stream_that_is_stuck_keeps_no_other_from_its_end) {
  std::list<BoundPair> pairs(4);
  const auto ends_are_known = [&](size_t end) {
    size_t known = 0;
    for (BoundPair& pair : pairs) known += pair.stream(end).receiver().peer_has_finished() ? 1 : 0;
    return known;
  };
  // Whichever stream is looked at first, the code that a signal has interrupted holds its lock.
  for (BoundPair& pair : pairs) pair.stream(0).sender().mutex().lock();
  pairs.back().stream(0).sender().unlock();
  preload::AllSockets::finish_all();
  BOOST_CHECK(eventually([&] { return ends_are_known(1) == 1 && ends_are_known(0) == 4; }));
  for (BoundPair& pair : pairs)
    if (&pair != &pairs.back()) pair.stream(0).sender().unlock();
}

BOOST_AUTO_TEST_CASE(each_leave_is_waited_for) {
  static std::atomic<bool> done;
  const BoundPair starts_the_node;
  engine::Manager& manager = engine::Node::running()->manager();
  manager.leave(false);                    // as before an exec that fails; the process ends later
  manager.run_from_signal([]() noexcept {  // runs before the leave
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  manager.leave(true);
  BOOST_CHECK(done);
}

BOOST_AUTO_TEST_SUITE_END()

// The node's receive lock, which consists of the locks of its lanes.
#include "engine/progress/lane.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "tests/support/bound_pair.hpp"

namespace sidestep::engine {
namespace {

struct Fixture {
  size_t locked() {
    return static_cast<size_t>(std::count_if(lanes.open().begin(), lanes.open().end(),
                                             [](Lane& lane) { return lane.lock.is_locked(); }));
  }
  void open_up_to(uint32_t count) {
    lanes.lock();
    lanes.open_up_to(count);
    lanes.unlock();
  }

  tests::BoundPair pair;  // starts the node
  Lanes lanes{Node::running()->streams().table()};
};

/// Sleeps, and notes when it is woken whether the receive lock was free.
class Sleeping final : public Wakeable {
 public:
  explicit Sleeping(Fixture& fixture) noexcept : fixture_(fixture) { word_ = kAsleep; }
  bool woken = false;
  bool was_free = false;

 private:
  void wake_now() noexcept override {
    woken = true;
    was_free = fixture_.locked() == 0;
  }
  Fixture& fixture_;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lane, Fixture)

BOOST_AUTO_TEST_CASE(it_is_the_lock_of_every_lane_in_use) {
  BOOST_CHECK_EQUAL(lanes.open().size(), 1u);
  lanes.lock();
  BOOST_CHECK_EQUAL(locked(), 1u);
  lanes.unlock();
  open_up_to(3);
  BOOST_CHECK_EQUAL(lanes.open().size(), 3u);
  BOOST_CHECK_EQUAL(locked(), 0u);
  lanes.lock();
  BOOST_CHECK_EQUAL(locked(), 3u);
  lanes.unlock();
  BOOST_CHECK_EQUAL(locked(), 0u);
}

BOOST_AUTO_TEST_CASE(who_opens_a_lane_has_it) {
  lanes.lock();
  lanes.open_up_to(2);
  BOOST_CHECK_EQUAL(locked(), 2u);
  lanes.open_up_to(1);  // closes no lane
  BOOST_CHECK_EQUAL(lanes.open().size(), 2u);
  lanes.unlock();
  BOOST_CHECK_EQUAL(locked(), 0u);
}

BOOST_AUTO_TEST_CASE(a_guard_wakes_when_it_has_let_go_of_every_lane) {
  Sleeping sleeping(*this);
  {
    const ReceiveLockGuard guard(lanes);
    lanes.open_up_to(2);
    BOOST_CHECK_EQUAL(locked(), 2u);
    sleeping.wake();
    BOOST_CHECK(!sleeping.woken);
  }
  BOOST_CHECK(sleeping.woken);
  BOOST_CHECK(sleeping.was_free);
  BOOST_CHECK_EQUAL(locked(), 0u);
}

BOOST_AUTO_TEST_CASE(a_try_that_fails_holds_none) {
  open_up_to(4);
  for (Lane& held : lanes.open()) {
    held.lock.lock();
    BOOST_CHECK(!lanes.try_lock());
    BOOST_CHECK_EQUAL(locked(), 1u);
    held.lock.unlock();
  }
  BOOST_CHECK(lanes.try_lock());
  lanes.unlock();
}

BOOST_AUTO_TEST_CASE(lanes_that_are_polled_let_it_through) {
  open_up_to(kLanes);
  std::atomic<bool> over{false};
  uint64_t guarded[kLanes] = {};
  std::vector<std::thread> threads;
  for (Lane& lane : lanes.open())
    threads.emplace_back([&] {
      while (!over) {
        if (!lane.lock.try_lock()) continue;
        ++guarded[lane.number];
        lane.lock.unlock();
      }
    });
  for (int i = 0; i < 200; ++i) {
    lanes.lock();
    for (uint64_t& count : guarded) ++count;
    const std::vector<uint64_t> before(std::begin(guarded), std::end(guarded));
    std::this_thread::yield();
    BOOST_CHECK(std::equal(before.begin(), before.end(), guarded));
    lanes.unlock();
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace sidestep::engine

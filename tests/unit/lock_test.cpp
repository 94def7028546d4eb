// The engine's mutex, and handlers that find it held.
#include "engine/lock.hpp"

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>

using namespace std::chrono_literals;
using sidestep::engine::held_locks;
using sidestep::engine::Mutex;

BOOST_AUTO_TEST_SUITE(lock)

BOOST_AUTO_TEST_CASE(locks_that_are_held_are_counted) {
  Mutex first;
  Mutex second;
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
  first.lock();
  BOOST_CHECK(second.try_lock());
  BOOST_CHECK(!second.try_lock());
  BOOST_CHECK_EQUAL(held_locks.count, 2u);
  first.unlock();
  second.unlock();
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
}

BOOST_AUTO_TEST_CASE(what_another_thread_holds_is_waited_for_however_long_it_takes) {
  // It may have been stopped, or have lost its processor.
  Mutex mutex;
  mutex.lock();
  bool had = false;
  std::thread other([&] {
    had = mutex.lock_unless_stuck();
    if (had) mutex.unlock();
  });
  std::this_thread::sleep_for(400ms);
  mutex.unlock();
  other.join();
  BOOST_CHECK(had);
}

BOOST_AUTO_TEST_CASE(what_this_thread_holds_itself_is_not_waited_for) {
  // As in a handler that has interrupted the holder.
  Mutex mutex;
  mutex.lock();
  BOOST_CHECK(!mutex.lock_unless_stuck());
  mutex.unlock();
  BOOST_CHECK(mutex.lock_unless_stuck());
  mutex.unlock();
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
}

BOOST_AUTO_TEST_SUITE_END()

// The engine's mutex, and signal handlers that find it held.
#include "engine/base/lock.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
using sidestep::engine::GuardUnlessStuck;
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
  // The holder may have been stopped, or have lost its processor.
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
  // This is what a signal handler that has interrupted the holder finds.
  Mutex mutex;
  mutex.lock();
  BOOST_CHECK(!mutex.lock_unless_stuck());
  mutex.unlock();
  BOOST_CHECK(mutex.lock_unless_stuck());
  mutex.unlock();
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
}

BOOST_AUTO_TEST_CASE(a_guard_releases_only_what_it_has_got) {
  Mutex mutex;
  mutex.lock();
  {
    const GuardUnlessStuck guard(mutex);
    BOOST_CHECK(!guard);
  }
  BOOST_CHECK(mutex.is_locked());
  mutex.unlock();
  {
    const GuardUnlessStuck guard(mutex);
    BOOST_CHECK(!!guard);
    BOOST_CHECK(mutex.is_locked());
  }
  BOOST_CHECK(!mutex.is_locked());
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
}

BOOST_AUTO_TEST_CASE(who_does_not_need_it_any_more_does_not_wait_for_it) {
  Mutex mutex;
  std::atomic<bool> needless{false};
  std::atomic<int> gone{0};
  mutex.lock();
  std::vector<std::thread> crowd;
  for (int i = 0; i < 8; ++i)
    crowd.emplace_back([&] {
      if (mutex.lock_unless([&] { return needless.load(); })) mutex.unlock();
      ++gone;
    });
  std::this_thread::sleep_for(20ms);
  BOOST_CHECK_EQUAL(gone, 0);
  needless = true;
  for (std::thread& thread : crowd) thread.join();
  mutex.unlock();
  BOOST_CHECK_EQUAL(held_locks.count, 0u);
  BOOST_CHECK(mutex.lock_unless([] { return true; }));  // the lock is free
  mutex.unlock();
}

BOOST_AUTO_TEST_SUITE_END()

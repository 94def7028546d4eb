#include "engine/base/thread_end.hpp"

#include <pthread.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <thread>

using namespace sidestep::engine;

namespace {

std::atomic<int> ended{0};
constinit thread_local ThreadEnd one{[]() noexcept { ended += 1; }};
constinit thread_local ThreadEnd other{[]() noexcept { ended += 100; }};

/// What a program may do when its thread ends: make a call that lists a ThreadEnd again.
void list_again(void*) {
  at_thread_end(one);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(thread_end)

BOOST_AUTO_TEST_CASE(each_is_run_once) {
  ended = 0;
  std::thread([] {
    at_thread_end(one);
    at_thread_end(other);
    at_thread_end(one);
    BOOST_TEST(ended == 0);
  }).join();
  BOOST_TEST(ended == 101);
  std::thread([] {}).join();
  BOOST_TEST(ended == 101);
}

BOOST_AUTO_TEST_CASE(it_may_list_another) {
  static constinit thread_local ThreadEnd last{[]() noexcept { ended += 10'000; }};
  static constinit thread_local ThreadEnd first{[]() noexcept { at_thread_end(last); }};
  ended = 0;
  std::thread([] { at_thread_end(first); }).join();
  BOOST_TEST(ended == 10'000);
}

BOOST_AUTO_TEST_CASE(a_key_of_the_program_may_have_it_listed_again) {
  prepare_thread_ends();  // destructors run in the order of the keys' numbers
  ended = 0;
  pthread_key_t key = 0;
  BOOST_REQUIRE_EQUAL(pthread_key_create(&key, list_again), 0);
  std::thread([key] {
    pthread_setspecific(key, &ended);
    at_thread_end(one);
  }).join();
  BOOST_TEST(ended == 2);
  pthread_key_delete(key);
}

BOOST_AUTO_TEST_SUITE_END()

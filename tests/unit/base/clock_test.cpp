// Reading the clock without the C library's symbol, which others may interpose.
#include "engine/base/clock.hpp"

#include <boost/test/unit_test.hpp>

#include "engine/base/sys.hpp"

using namespace sidestep::engine;

namespace {

uint64_t nanoseconds(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(time.tv_nsec);
}

uint64_t by_system_call() {
  timespec time{};
  sys::call(SYS_clock_gettime, CLOCK_MONOTONIC, &time);
  return nanoseconds(time);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(monotonic_clock)

BOOST_AUTO_TEST_CASE(it_is_the_kernels) {
  for (int i = 0; i < 1000; ++i) {
    const uint64_t before = by_system_call();
    const uint64_t now = now_ns();
    const uint64_t after = by_system_call();
    BOOST_REQUIRE_LE(before, now);
    BOOST_REQUIRE_LE(now, after);
  }
}

BOOST_AUTO_TEST_SUITE_END()

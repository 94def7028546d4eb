#include "engine/progress/crowding.hpp"

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstdint>

#include "tests/support/fake_control_group.hpp"

using sidestep::engine::CpuQuota;
using sidestep::engine::Crowding;
using sidestep::engine::now_ns;

namespace tests = sidestep::tests;

namespace {

constexpr uint64_t kMillisecond = 1'000'000;
const CpuQuota kNoQuota;

/// One thread yields once every `every` ns, for `length` each time, until nobody should poll.
/// Returns how long that took; 0 if it never came to that.
uint64_t yield_until_crowded(Crowding& crowding, uint64_t start, uint64_t length, uint64_t every) {
  for (uint64_t now = start; now < start + 10'000 * kMillisecond; now += every)
    if (crowding.yielded(now, now + length, 1)) return now + length - start;
  return 0;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(crowding)

BOOST_AUTO_TEST_CASE(short_yields_are_free) {
  Crowding crowding{kNoQuota};
  const uint64_t start = now_ns();
  BOOST_TEST(yield_until_crowded(crowding, start, 200'000, 201'000) == 0);
  BOOST_TEST(crowding.until() == 0);
  BOOST_TEST(!crowding.is_crowded());
}

BOOST_AUTO_TEST_CASE(where_many_poll_a_yield_may_take_longer) {
  Crowding crowding{kNoQuota};
  const uint64_t start = now_ns();
  for (int i = 0; i < 100; ++i)
    BOOST_TEST(!crowding.yielded(start + static_cast<uint64_t>(i) * 2 * kMillisecond,
                                 start + static_cast<uint64_t>(i + 1) * 2 * kMillisecond, 100));
  BOOST_TEST(crowding.until() == 0);
}

BOOST_AUTO_TEST_CASE(long_yields_one_behind_the_other_are_too_much) {
  Crowding crowding{kNoQuota};
  const uint64_t start = now_ns();
  const uint64_t took = yield_until_crowded(crowding, start, 3 * kMillisecond, 3'010'000);
  BOOST_TEST(took > 10 * kMillisecond);
  BOOST_TEST(took < 50 * kMillisecond);
  BOOST_TEST(crowding.until() > start + took);
  BOOST_TEST(crowding.is_crowded());
}

BOOST_AUTO_TEST_CASE(a_long_yield_now_and_then_is_forgotten) {
  Crowding crowding{kNoQuota};
  BOOST_TEST(yield_until_crowded(crowding, now_ns(), 3 * kMillisecond, 20 * kMillisecond) == 0);
}

BOOST_AUTO_TEST_CASE(a_time_in_which_many_threads_wait_counts_once) {
  Crowding crowding{kNoQuota};
  const uint64_t start = now_ns();
  for (uint64_t i = 0; i < 100; ++i)
    BOOST_TEST(!crowding.yielded(start + i, start + 4 * kMillisecond + i, 1));
}

BOOST_AUTO_TEST_CASE(each_rest_is_longer_that_follows_soon_and_none_is_longer_than_a_second) {
  Crowding crowding{kNoQuota};
  uint64_t start = now_ns();
  uint64_t before = 0;
  for (int i = 0; i < 10; ++i) {
    start += yield_until_crowded(crowding, start, 3 * kMillisecond, 3'010'000);
    const uint64_t rest = crowding.until() - start;
    BOOST_TEST(rest <= 1000 * kMillisecond);
    BOOST_TEST((rest > before || rest == 1000 * kMillisecond));
    before = rest;
    start = crowding.until();
  }
  BOOST_TEST(before == 1000 * kMillisecond);
  // Long afterwards, the first rest is as short as ever.
  start += 100'000 * kMillisecond;
  start += yield_until_crowded(crowding, start, 3 * kMillisecond, 3'010'000);
  BOOST_TEST(crowding.until() - start < 50 * kMillisecond);
}

BOOST_AUTO_TEST_CASE(what_a_peer_says_is_believed_within_limits_and_of_that_peer_only) {
  Crowding crowding{kNoQuota};
  std::atomic<uint64_t> past{0};
  const uint64_t now = now_ns();
  for (const uint64_t until : {uint64_t{0}, now - 1, UINT64_MAX, now + 10'000 * kMillisecond})
    BOOST_TEST(!crowding.is_peer_crowded(until, past));
  BOOST_TEST(crowding.is_peer_crowded(now + 900 * kMillisecond, past));
  BOOST_TEST(crowding.is_peer_crowded(now + 900 * kMillisecond, past));
  BOOST_TEST(!crowding.is_crowded());
  BOOST_TEST(crowding.until() == 0);
}

BOOST_AUTO_TEST_CASE(a_peers_rest_ends) {
  Crowding crowding{kNoQuota};
  std::atomic<uint64_t> past{0};
  const uint64_t until = now_ns() + 5 * kMillisecond;
  BOOST_TEST(crowding.is_peer_crowded(until, past));
  while (now_ns() < until) {
  }
  BOOST_TEST(!crowding.is_peer_crowded(until, past));
  BOOST_TEST(past.load() == until);
}

BOOST_AUTO_TEST_CASE(the_next_rest_is_longer_than_that_of_a_peer_which_ended_just_now) {
  Crowding crowding{kNoQuota};
  std::atomic<uint64_t> past{0};
  const uint64_t now = now_ns();
  BOOST_TEST(crowding.is_peer_crowded(now + 200 * kMillisecond, past));
  const uint64_t start = now + 201 * kMillisecond;
  const uint64_t took = yield_until_crowded(crowding, start, 3 * kMillisecond, 3'010'000);
  BOOST_TEST(crowding.until() - start - took > 300 * kMillisecond);
}

BOOST_AUTO_TEST_CASE(it_ends) {
  Crowding crowding{kNoQuota};
  const uint64_t start = now_ns() - 50 * kMillisecond;
  yield_until_crowded(crowding, start, 3 * kMillisecond, 3'010'000);
  while (now_ns() < crowding.until()) {
  }
  BOOST_TEST(crowding.until() != 0);
  BOOST_TEST(!crowding.is_crowded());
  BOOST_TEST(!crowding.is_crowded());
}

/// A thread that polls under a quota. All times lie in the past, so each rest is over.
struct UnderQuota {
  UnderQuota() { quota.open("0::/own\n", group.mounts()); }

  /// Yields until nobody should poll; the quota takes `throttled` out of each yield. Returns the
  /// length of the rest; 0 if there is none.
  uint64_t yield_until_crowded(uint64_t throttled) {
    for (int i = 0; i < 100; ++i) {
      group.throttle(throttled);
      const uint64_t began = now;
      now += 50 * kMillisecond;
      if (crowding.yielded(began, now, 1)) return crowding.until() - now;
      now += kMillisecond;
    }
    return 0;
  }
  void rest(uint64_t throttled) {
    group.throttle(throttled);
    now = crowding.until() + kMillisecond;
    BOOST_TEST(!crowding.is_crowded());
  }

  tests::FakeControlGroup group{"own"};
  CpuQuota quota;
  Crowding crowding{quota};
  uint64_t now = now_ns() - 60'000 * kMillisecond;
};

BOOST_FIXTURE_TEST_CASE(polling_that_uses_a_quota_up_rests_for_longer_and_longer, UnderQuota) {
  uint64_t before = 0;
  for (int i = 0; i < 4; ++i) {
    const uint64_t took = yield_until_crowded(50 * kMillisecond);
    BOOST_TEST(took >= 150 * kMillisecond);
    BOOST_TEST((took > before || took == 1000 * kMillisecond));
    before = took;
    rest(0);
  }
}

BOOST_FIXTURE_TEST_CASE(polling_goes_on_where_the_quota_is_used_up_without_it, UnderQuota) {
  BOOST_TEST(yield_until_crowded(50 * kMillisecond) != 0);
  rest(80 * kMillisecond);
  BOOST_TEST(yield_until_crowded(50 * kMillisecond) == 0);
  // Time that other threads take is told apart and still counts.
  BOOST_TEST(yield_until_crowded(0) != 0);
}

BOOST_FIXTURE_TEST_CASE(polling_is_acquitted_for_a_while_only, UnderQuota) {
  BOOST_TEST(yield_until_crowded(50 * kMillisecond) != 0);
  rest(80 * kMillisecond);
  now = now_ns() + 11'000 * kMillisecond;
  BOOST_TEST(yield_until_crowded(50 * kMillisecond) != 0);
}

BOOST_AUTO_TEST_SUITE_END()

// How threads sleep and are woken: on a word of their own, or in ppoll(2) with an alarm that they
// share with other threads.
#include "engine/progress/waiter.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/base/clock.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "tests/support/tracked_pair.hpp"

using namespace sidestep;
using namespace std::chrono_literals;
using engine::AlarmPlace;
using engine::Sleeper;
using Way = Sleeper::Way;

namespace {

/// A node with all its alarms.
struct Started {
  Started() noexcept { engine::open_more_alarms(); }
  tests::TrackedPair pair{true};
};

bool is_readable(int fd) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, 0) == 1;
}

constexpr timespec kLimit{20, 0};

/// Returns the result of one sleep. Calls `before` between the last look and the sleep.
template <typename Before>
int sleep_once(Sleeper& sleeper, Way way, Before before, const timespec& limit = kLimit) {
  for (;;) {
    sleeper.prepare(way);
    before();
    std::array<pollfd, 1> fds{};
    const int result =
        way == Way::word ? sleeper.sleep(&limit) : sleeper.poll(fds, 0, &limit, nullptr);
    if (sleeper.stay_awake() || result <= 0) {
      sleeper.finish();
      return result;
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(waiter)

BOOST_AUTO_TEST_CASE(the_same_alarm_wakes_many_and_is_silent_when_those_that_it_called_have_left) {
  const Started started;
  // There are more places than alarms. `other` is the first place that shares the alarm of place 0.
  std::array<AlarmPlace, 12> places;
  std::array<int, 12> fds{};
  for (size_t i = 0; i < places.size(); ++i) {
    fds[i] = places[i].enter(false);
    BOOST_REQUIRE_GE(fds[i], 0);
    BOOST_CHECK(!is_readable(fds[i]));
  }
  size_t other = 1;
  while (other < places.size() && fds[other] != fds[0]) ++other;
  BOOST_REQUIRE_LT(other, places.size());
  places[0].ring();
  places[other].ring();
  places[other].ring();  // a late ring
  BOOST_CHECK(is_readable(fds[0]));
  // Nobody joins an alarm that rings.
  AlarmPlace late;
  const int fd = late.enter(false);
  BOOST_CHECK_NE(fd, fds[0]);
  BOOST_CHECK_GE(fd, 0);
  late.leave(false);
  places[0].leave(true);
  BOOST_CHECK(is_readable(fds[0]));  // the other thread may not have seen it
  places[other].leave(true);
  BOOST_CHECK(!is_readable(fds[0]));
  for (AlarmPlace& place : places) place.leave(false);
  places[0].ring();  // nobody sleeps there
  BOOST_CHECK(!is_readable(fds[0]));
}

BOOST_AUTO_TEST_CASE(who_finds_all_alarms_ringing_sleeps_for_a_moment_only) {
  const Started started;
  std::vector<AlarmPlace> places(8);
  for (AlarmPlace& place : places) {
    place.enter(false);
    place.ring();
  }
  AlarmPlace late;
  BOOST_CHECK_LT(late.enter(false), 0);
  Sleeper& sleeper = *Sleeper::mine();
  sleeper.prepare(Way::poll);
  std::array<pollfd, 1> fds{};
  BOOST_CHECK_EQUAL(sleeper.poll(fds, 0, nullptr, nullptr), 1);  // wakes for no reason
  BOOST_CHECK(!sleeper.stay_awake());
  sleeper.finish();
  for (AlarmPlace& place : places) place.leave(true);
  BOOST_CHECK_GE(late.enter(false), 0);
  late.leave(false);
}

BOOST_AUTO_TEST_CASE(the_doorbell_owner_has_an_alarm_of_its_own) {
  const Started started;
  AlarmPlace owner;
  const int own = owner.enter(true);
  BOOST_REQUIRE_GE(own, 0);
  std::vector<AlarmPlace> places(8);
  for (AlarmPlace& place : places) BOOST_CHECK_NE(place.enter(false), own);
  AlarmPlace second;
  BOOST_CHECK_NE(second.enter(true), own);
  for (AlarmPlace& place : places) place.leave(false);
  second.leave(false);
  owner.leave(false);
}

BOOST_AUTO_TEST_CASE(a_handler_between_the_last_look_and_the_sleep_ends_a_sleep_on_a_word) {
  const Started started;
  BOOST_CHECK_EQUAL(sleep_once(*Sleeper::mine(), Way::word, [] { Sleeper::handler_ran(); }), 1);
  // With ppoll(), the handler runs inside the call or not at all. It must not take away another
  // thread's wake-up.
  Sleeper& sleeper = *Sleeper::mine();
  sleeper.prepare(Way::poll);
  Sleeper::handler_ran();
  BOOST_CHECK(!sleeper.stay_awake());
  sleeper.finish();
}

BOOST_AUTO_TEST_CASE(a_sleep_ends_when_its_time_is_up) {
  const Started started;
  for (const Way way : {Way::word, Way::poll, Way::doorbells}) {
    const auto start = std::chrono::steady_clock::now();
    BOOST_CHECK_EQUAL(sleep_once(
                          *Sleeper::mine(), way, [] {}, timespec{0, 20'000'000}),
                      0);
    BOOST_CHECK(std::chrono::steady_clock::now() - start >= 20ms);
  }
}

// Few tokens circulate among many threads, so no other wake-up follows one that is lost.
BOOST_AUTO_TEST_CASE(no_wake_up_is_lost_among_many_threads) {
  const Started started;
  constexpr size_t kThreads = 32;
  constexpr unsigned kTokens = 3;
  constexpr unsigned kHops = 20'000;
  struct Place {
    std::atomic<Sleeper*> sleeper{nullptr};
    std::atomic<unsigned> tokens{0};
  };
  std::array<Place, kThreads> places;
  std::atomic<unsigned> hops{0};
  std::atomic<unsigned> lost{0};
  const auto wake_all = [&] {
    for (Place& place : places)
      if (Sleeper* const sleeper = place.sleeper.load()) sleeper->wake();
  };
  const auto work = [&](size_t self) {
    Place& own = places[self];
    Sleeper& sleeper = *Sleeper::mine();
    own.sleeper.store(&sleeper);
    unsigned random = static_cast<unsigned>(self) * 7919 + 1;
    for (unsigned turn = 0; hops.load() < kHops; ++turn) {
      // Most sleeps use an alarm; some do not.
      const Way way = (turn + self) % 4 == 0 ? Way::word : self == 0 ? Way::doorbells : Way::poll;
      sleeper.prepare(way);
      if (own.tokens.load() == 0 && hops.load() < kHops) {
        std::array<pollfd, 1> fds{};
        const int result =
            way == Way::word ? sleeper.sleep(&kLimit) : sleeper.poll(fds, 0, &kLimit, nullptr);
        if (!sleeper.stay_awake() && result == 0) lost.fetch_add(1);
      }
      sleeper.finish();
      for (unsigned left = own.tokens.exchange(0); left != 0; --left) {
        hops.fetch_add(1);
        random = random * 1664525 + 1013904223;
        Place& next = places[(random >> 16) % kThreads];
        const engine::WakeBatch later;
        next.tokens.fetch_add(1);
        if (Sleeper* const waiting = next.sleeper.load()) waiting->wake();
      }
    }
    wake_all();
  };
  places[0].tokens.store(kTokens);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  BOOST_CHECK_EQUAL(lost.load(), 0);
}

BOOST_AUTO_TEST_CASE(who_is_left_to_a_peer_that_does_nothing_is_woken_in_the_end) {
  Sleeper& sleeper = *Sleeper::mine();
  sleeper.prepare(Way::word);
  sleeper.leave_to_peer();
  BOOST_CHECK(!sleeper.stay_awake());
  sleeper.prepare(Way::word);  // another sleep, which is not left to a peer
  uint64_t now = engine::now_ns();
  const auto look = [&] { return Sleeper::wake_left(now += 30'000'000); };
  BOOST_CHECK_EQUAL(look() + look() + look(), 0u);
  sleeper.leave_to_peer();
  // The first look wakes nobody: the sleeper may have been left to its peer just now.
  BOOST_CHECK_EQUAL(look(), 0u);
  BOOST_CHECK_EQUAL(look() + look(), 1u);
  BOOST_CHECK_EQUAL(sleeper.sleep(nullptr), 1);
  BOOST_CHECK(sleeper.stay_awake());
  sleeper.finish();
}

BOOST_AUTO_TEST_CASE(an_eventfd_of_a_set_is_closed_with_it) {
  engine::EventSleeper& sleeper = engine::EventSleeper::take();
  const int fd = sleeper.fd();
  BOOST_REQUIRE_GE(fd, 0);
  sleeper.prepare();
  sleeper.wake();
  BOOST_CHECK(is_readable(fd));
  sleeper.finish();
  BOOST_CHECK(!is_readable(fd));
  engine::EventSleeper::give_back(sleeper);
  BOOST_CHECK(!engine::is_private_fd(fd));
  sleeper.wake();  // too late: must not touch the number's new owner
}

BOOST_AUTO_TEST_CASE(a_nap_ends_by_a_wake_up_and_by_the_word_of_a_peer) {
  if (!Sleeper::can_nap()) {
    BOOST_TEST_MESSAGE("NOT TESTED: this kernel has no futex_waitv(2), or there is a filter");
    return;
  }
  // The word that a peer writes, in memory that both processes map.
  void* const memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(memory != MAP_FAILED);
  auto& word = *new (memory) std::atomic<uint32_t>{5};
  Sleeper& sleeper = *Sleeper::mine();
  const timespec moment{0, 20'000'000};
  std::array<engine::Nap, 1> naps;
  const auto one = [&](uint32_t value) {
    naps[0] = {&word, value};
    return std::span<const engine::Nap>(naps);
  };

  sleeper.prepare(Way::word);
  BOOST_CHECK_EQUAL(sleeper.nap(one(5), &moment), 0);
  BOOST_CHECK(!sleeper.stay_awake());
  sleeper.finish();

  // The word has changed between the look and the nap.
  sleeper.prepare(Way::word);
  BOOST_CHECK_EQUAL(sleeper.nap(one(4), nullptr), 1);
  BOOST_CHECK(!sleeper.stay_awake());
  sleeper.finish();
  sleeper.prepare(Way::word);
  sleeper.wake();
  BOOST_CHECK_EQUAL(sleeper.nap(one(5), nullptr), 1);
  BOOST_CHECK(sleeper.stay_awake());
  sleeper.finish();

  for (const bool by_peer : {false, true}) {
    sleeper.prepare(Way::word);
    std::thread other([&] {
      std::this_thread::sleep_for(20ms);
      if (by_peer) {
        word.fetch_add(1);
        engine::sys::call(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
      } else {
        sleeper.wake();
      }
    });
    BOOST_CHECK_EQUAL(sleeper.nap(one(5), &kLimit), 1);
    BOOST_CHECK_EQUAL(sleeper.stay_awake(), !by_peer);
    sleeper.finish();
    other.join();
  }
  munmap(memory, 4096);
}

BOOST_AUTO_TEST_SUITE_END()

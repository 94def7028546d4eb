// The directory in which nodes enter their connections, and in which others look these up.
#include "engine/control/directory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace sidestep::engine;

namespace {

Tuple connection(uint32_t number) {
  Tuple tuple;
  tuple.local.ip[15] = static_cast<uint8_t>(number >> 16);
  tuple.local.port = static_cast<uint16_t>(number);
  tuple.remote.ip[15] = 1;
  tuple.remote.port = 80;
  return tuple;
}

using End = Directory::End;
constexpr End kOwn = End::connecting;

std::set<uint16_t> found(const Directory& directory, const Tuple& tuple, End end = kOwn) {
  std::array<uint16_t, Directory::kWindow> nids;
  const size_t count = directory.find(end, tuple, nids);
  const std::set<uint16_t> different(nids.begin(), nids.begin() + count);
  if (different.size() != count) throw std::logic_error("one was found twice");
  return different;
}

using Nids = std::set<uint16_t>;

}  // namespace

BOOST_AUTO_TEST_SUITE(directory)

BOOST_AUTO_TEST_CASE(what_was_entered_is_found_until_it_is_taken_out) {
  const auto own = Directory::create();
  BOOST_REQUIRE(own);
  BOOST_CHECK(found(*own, connection(1)).empty());
  BOOST_CHECK(own->enter(kOwn, connection(1), 7));
  BOOST_CHECK(own->enter(kOwn, connection(2), 8));
  BOOST_CHECK(found(*own, connection(1)) == Nids{7});
  BOOST_CHECK(found(*own, connection(2)) == Nids{8});
  BOOST_CHECK(found(*own, connection(1).mirrored()).empty());
  own->leave(kOwn, connection(1), 8);  // no such entry
  BOOST_CHECK(found(*own, connection(1)) == Nids{7});
  own->leave(kOwn, connection(1), 7);
  own->leave(kOwn, connection(1), 7);
  BOOST_CHECK(found(*own, connection(1)).empty());
  BOOST_CHECK(found(*own, connection(2)) == Nids{8});
}

BOOST_AUTO_TEST_CASE(all_are_found_that_have_entered_the_same) {
  const auto own = Directory::create();
  for (const uint16_t nid : std::initializer_list<uint16_t>{3, 1, 0xffff, 1})
    BOOST_CHECK(own->enter(kOwn, connection(5), nid));
  BOOST_CHECK((found(*own, connection(5)) == Nids{1, 3, 0xffff}));
  own->leave(kOwn, connection(5), 1);  // one of its two entries
  BOOST_CHECK((found(*own, connection(5)) == Nids{1, 3, 0xffff}));
  own->leave(kOwn, connection(5), 1);
  BOOST_CHECK((found(*own, connection(5)) == Nids{3, 0xffff}));
}

BOOST_AUTO_TEST_CASE(who_has_it_is_known_until_it_is_gone) {
  const auto own = Directory::create();
  const auto other = Directory::map(own->fd());
  for (const uint16_t nid : std::initializer_list<uint16_t>{1, 63, 64, 0xffff}) {
    BOOST_CHECK(!other->has_joined(nid));
    own->join(nid);
    BOOST_CHECK(other->has_joined(nid));
  }
  BOOST_CHECK(!other->has_joined(2));
  other->part(63);
  BOOST_CHECK(!own->has_joined(63));
  std::bitset<0x10000> nids;
  own->list(nids);
  BOOST_CHECK_EQUAL(nids.count(), 3);
  BOOST_CHECK(nids[1] && nids[64] && nids[0xffff]);
  nids.reset(1);
  own->sweep(nids);
  BOOST_CHECK(own->has_joined(1));
  BOOST_CHECK(!own->has_joined(64) && !own->has_joined(0xffff));
  BOOST_CHECK(found(*own, connection(5)).empty());
}

BOOST_AUTO_TEST_CASE(others_map_the_same_file) {
  const auto own = Directory::create();
  const auto other = Directory::map(own->fd());
  BOOST_REQUIRE(other);
  BOOST_CHECK(other->is_of(own->fd()));
  BOOST_CHECK_NE(other->fd(), own->fd());
  own->enter(kOwn, connection(9), 4);
  BOOST_CHECK(found(*other, connection(9)) == Nids{4});
  other->leave(kOwn, connection(9), 4);
  BOOST_CHECK(found(*own, connection(9)).empty());
  BOOST_CHECK(!Directory::create()->is_of(own->fd()));
}

BOOST_AUTO_TEST_CASE(a_file_that_is_none_is_refused) {
  BOOST_CHECK(!Directory::map(-1));
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  BOOST_CHECK(!Directory::map(null));
  close(null);
  const auto own = Directory::create();
  struct stat status {};
  fstat(own->fd(), &status);
  for (const bool sealed : {false, true})
    for (const off_t size : {status.st_size - 1, status.st_size}) {
      // Even a file of the right size that is sealed lacks the header.
      const int fd = memfd_create("none", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      BOOST_REQUIRE_EQUAL(ftruncate(fd, size), 0);
      if (sealed) fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
      BOOST_CHECK(!Directory::map(fd));
      close(fd);
    }
}

BOOST_AUTO_TEST_CASE(its_size_can_not_be_changed) {
  const auto own = Directory::create();
  BOOST_CHECK_EQUAL(ftruncate(own->fd(), 0), -1);
  BOOST_CHECK_EQUAL(errno, EPERM);
}

BOOST_AUTO_TEST_CASE(where_there_is_no_room_it_says_so) {
  const auto own = Directory::create();
  size_t entered = 0;
  while (entered < Directory::kWords && own->enter(kOwn, connection(3), 2)) ++entered;
  BOOST_CHECK_EQUAL(entered, Directory::kWindow);
  BOOST_CHECK(!own->enter(kOwn, connection(3), 3));
  BOOST_CHECK(found(*own, connection(3)) == Nids{2});
  own->leave(kOwn, connection(3), 2);
  BOOST_CHECK(own->enter(kOwn, connection(3), 3));
  BOOST_CHECK((found(*own, connection(3)) == Nids{2, 3}));
}

BOOST_AUTO_TEST_CASE(the_two_ends_are_not_taken_for_each_other) {
  const auto own = Directory::create();
  BOOST_CHECK(own->enter(End::accepting, connection(1), 7));
  BOOST_CHECK(found(*own, connection(1)).empty());
  BOOST_CHECK(own->enter(kOwn, connection(1), 8));
  BOOST_CHECK(found(*own, connection(1), End::accepting) == Nids{7});
  BOOST_CHECK(found(*own, connection(1)) == Nids{8});
  own->leave(kOwn, connection(1), 7);
  own->leave(End::accepting, connection(1), 8);
  BOOST_CHECK(found(*own, connection(1), End::accepting) == Nids{7});
  own->leave(End::accepting, connection(1), 7);
  BOOST_CHECK(found(*own, connection(1), End::accepting).empty());
  BOOST_CHECK(found(*own, connection(1)) == Nids{8});
}

BOOST_AUTO_TEST_CASE(accepting_ends_leave_room_for_those_that_connect) {
  const auto own = Directory::create();
  size_t entered = 0;
  while (entered < Directory::kWords && own->enter(End::accepting, connection(3), 2)) ++entered;
  BOOST_CHECK_EQUAL(entered, Directory::kWindow / 2);
  BOOST_CHECK(own->enter(kOwn, connection(3), 2));
}

BOOST_AUTO_TEST_CASE(of_two_ends_one_at_least_finds_the_other) {
  const auto own = Directory::create();
  const auto other = Directory::map(own->fd());
  constexpr uint32_t kRounds = 20'000;
  std::atomic<uint32_t> rounds[2] = {0, 0};
  std::vector<uint8_t> has_found[2] = {std::vector<uint8_t>(kRounds),
                                       std::vector<uint8_t>(kRounds)};
  const auto come = [&](Directory& directory, End end) {
    const size_t me = static_cast<size_t>(end);
    const End peer = end == kOwn ? End::accepting : kOwn;
    for (uint32_t i = 0; i < kRounds; ++i) {
      rounds[me].store(i);
      while (rounds[1 - me].load() < i) std::this_thread::yield();
      if (i != 0) directory.leave(end, connection(i - 1), 1);
      directory.enter(end, connection(i), 1);
      has_found[me][i] = !found(directory, connection(i), peer).empty();
    }
    rounds[me].store(kRounds);
  };
  std::thread accepting(come, std::ref(*other), End::accepting);
  come(*own, kOwn);
  accepting.join();
  for (uint32_t i = 0; i < kRounds; ++i) BOOST_REQUIRE(has_found[0][i] || has_found[1][i]);
}

BOOST_AUTO_TEST_CASE(half_of_it_can_be_used) {
  const auto own = Directory::create();
  uint32_t refused = 0;
  for (uint32_t i = 0; i < Directory::kWords / 2; ++i)
    refused += own->enter(kOwn, connection(i), 1) ? 0 : 1;
  BOOST_CHECK_LT(refused, Directory::kWords / 1000);
}

BOOST_AUTO_TEST_CASE(what_those_have_left_that_are_gone_is_taken_out) {
  const auto own = Directory::create();
  for (uint16_t nid = 1; nid <= 4; ++nid)
    for (uint32_t i = 0; i < 100; ++i) own->enter(kOwn, connection(nid * 1000U + i), nid);
  std::bitset<0x10000> nids;
  own->list(nids);
  BOOST_CHECK_EQUAL(nids.count(), 4u);
  nids.reset(2);
  own->sweep(nids);
  for (uint16_t nid = 1; nid <= 4; ++nid)
    for (uint32_t i = 0; i < 100; ++i)
      BOOST_REQUIRE(found(*own, connection(nid * 1000U + i)) == (nid == 2 ? Nids{2} : Nids{}));
}

BOOST_AUTO_TEST_CASE(threads_enter_and_take_out_at_the_same_time) {
  const auto own = Directory::create();
  constexpr uint16_t kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> missed{0};
  for (uint16_t nid = 1; nid <= kThreads; ++nid)
    threads.emplace_back([&, nid] {
      for (uint32_t i = 0; i < 20'000; ++i) {
        const Tuple same = connection(i % 8);
        if (!own->enter(kOwn, same, nid) || found(*own, same).count(nid) == 0) ++missed;
        own->leave(kOwn, same, nid);
      }
    });
  for (std::thread& thread : threads) thread.join();
  BOOST_CHECK_EQUAL(missed, 0);
  std::bitset<0x10000> nids;
  own->list(nids);
  BOOST_CHECK(nids.none());
}

BOOST_AUTO_TEST_CASE(a_child_takes_nothing_out_of_it) {
  const auto own = Directory::create();
  own->enter(kOwn, connection(1), 7);
  const pid_t child = fork();
  if (child == 0) {
    Directory::forget_after_fork();
    own->leave(kOwn, connection(1), 7);
    std::array<uint16_t, Directory::kWindow> nids;
    _exit(own->find(kOwn, connection(1), nids) == 0 && !own->enter(kOwn, connection(2), 7) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  BOOST_CHECK_EQUAL(status, 0);
  BOOST_CHECK(found(*own, connection(1)) == Nids{7});
}

BOOST_AUTO_TEST_SUITE_END()

#include "preload/selector.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/support/bound_pair.hpp"

using namespace sidestep;

BOOST_AUTO_TEST_SUITE(selector)

BOOST_AUTO_TEST_CASE(what_lies_behind_the_sets_is_left_alone) {
  const tests::BoundPair pair;
  // A set is as long as an fd_set or as the descriptor table. The count is that of getdtablesize().
  constexpr int kCount = 1 << 20;
  constexpr size_t kSet = 2048 / 8;
  std::vector<unsigned char> bits(kCount / 8, 0xff);
  std::fill_n(bits.begin(), kSet, 0);
  auto* const set = reinterpret_cast<fd_set*>(bits.data());
  const int fd = pair.fd(1);
  BOOST_REQUIRE_LT(fd, 1024);
  const char byte = 'x';
  const iovec part{const_cast<char*>(&byte), 1};
  BOOST_REQUIRE_EQUAL(pair.socket(0).transmit(&part, 1, 0), 1);
  bits[static_cast<size_t>(fd) / 8] = static_cast<unsigned char>(1U << (fd % 8));
  BOOST_CHECK_EQUAL(preload::select_mixed(kCount, set, nullptr, nullptr, 1'000'000'000, nullptr),
                    1);
  BOOST_CHECK(preload::is_set(fd, set));
  const auto is_touched = [](unsigned char bits_there) { return bits_there != 0xff; };
  BOOST_CHECK(std::none_of(bits.begin() + kSet, bits.end(), is_touched));
}

BOOST_AUTO_TEST_SUITE_END()

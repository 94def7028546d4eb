// Copies of few bytes are copies.
#include "engine/copy.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

using sidestep::engine::copy_bytes;

BOOST_AUTO_TEST_SUITE(copies)

BOOST_AUTO_TEST_CASE(every_length_is_copied_whole_and_nothing_beside_it) {
  constexpr size_t kMost = 300;
  std::vector<std::byte> source(kMost + 16);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t size = 0; size <= kMost; ++size) {
      std::vector<std::byte> target(size + 16, std::byte{0xee});
      copy_bytes(target.data() + 5, source.data() + from, size);
      std::vector<std::byte> expected(size + 16, std::byte{0xee});
      for (size_t i = 0; i < size; ++i) expected[5 + i] = source[from + i];
      BOOST_REQUIRE(target == expected);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

#include "preload/fd_table.hpp"

#include <boost/test/unit_test.hpp>
#include <climits>

using namespace sidestep::preload;

BOOST_AUTO_TEST_SUITE(fd_table)

BOOST_AUTO_TEST_CASE(numbers_outside_are_foreign) {
  for (const int fd : {-1, INT_MIN, FdTable::kSize, FdTable::kSize + 7, INT_MAX}) {
    BOOST_CHECK(!FdTable::can_contain(fd));
    BOOST_CHECK(FdTable::peek(fd) == nullptr);
    BOOST_CHECK(FdTable::peek_guardable(fd) == nullptr);
    BOOST_CHECK(FdTable::take(fd) == nullptr);
  }
  BOOST_CHECK(FdTable::can_contain(0));
  BOOST_CHECK(FdTable::can_contain(FdTable::kSize - 1));
}

BOOST_AUTO_TEST_SUITE_END()

#include "preload/descriptor.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <boost/test/unit_test.hpp>
#include <climits>

#include "tests/support/bound_pair.hpp"

using namespace sidestep;
using preload::DescriptorKind;
using preload::kind_of;
using preload::kind_to_wait_for;

namespace {
bool is(DescriptorKind kind, int fd) {
  return kind_of(fd) == kind;
}
}  // namespace

BOOST_AUTO_TEST_SUITE(descriptor)

BOOST_AUTO_TEST_CASE(numbers_that_nobody_has_noted_are_foreign) {
  for (const int fd : {-1, INT_MIN, 1, preload::FdTable::kSize, INT_MAX}) {
    BOOST_CHECK(is(DescriptorKind::foreign, fd));
    BOOST_CHECK(kind_to_wait_for(fd) == DescriptorKind::foreign);
  }
}

BOOST_AUTO_TEST_CASE(a_tracked_socket_is_a_stream_until_it_is_closed) {
  tests::BoundPair pair;
  const int fd = pair.fd(0);
  BOOST_CHECK(is(DescriptorKind::stream, fd));
  BOOST_CHECK(kind_to_wait_for(fd) == DescriptorKind::stream);
  pair.close_end(0);
  BOOST_CHECK(is(DescriptorKind::foreign, fd));
}

BOOST_AUTO_TEST_CASE(a_noted_set_is_an_epoll_set_until_it_is_forgotten) {
  const tests::BoundPair starts_the_node;
  const int fd = epoll_create1(EPOLL_CLOEXEC);
  preload::EventSetTable::note_created(fd);
  BOOST_CHECK(is(DescriptorKind::epoll_set, fd));
  preload::EventSetTable::forget(fd);
  BOOST_CHECK(is(DescriptorKind::foreign, fd));
  close(fd);
}

BOOST_AUTO_TEST_CASE(a_number_of_ours_is_ours_whatever_was_closed_under_it) {
  const tests::BoundPair pair;
  const int fd = engine::private_fd_adopt(eventfd(0, EFD_CLOEXEC));
  BOOST_REQUIRE_GE(fd, 0);
  BOOST_CHECK(is(DescriptorKind::ours, fd));
  BOOST_CHECK(kind_to_wait_for(fd) == DescriptorKind::foreign);
  preload::FdTable::set(fd, pair.socket(0));
  BOOST_CHECK(is(DescriptorKind::ours, fd));
  preload::FdTable::take(fd);
  engine::private_fd_close(fd);
  BOOST_CHECK(is(DescriptorKind::foreign, fd));
}

BOOST_AUTO_TEST_SUITE_END()

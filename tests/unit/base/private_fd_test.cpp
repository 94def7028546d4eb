#include "engine/base/private_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <vector>

using namespace sidestep::engine;

BOOST_AUTO_TEST_SUITE(private_fd)

BOOST_AUTO_TEST_CASE(an_adopted_descriptor_leaves_its_low_number_to_the_program) {
  const int low = eventfd(0, 0);
  const int fd = private_fd_adopt(low);
  BOOST_REQUIRE_GT(fd, low);
  BOOST_CHECK_EQUAL(fcntl(low, F_GETFD), -1);
  BOOST_CHECK(is_private_fd(fd));
  BOOST_CHECK(!is_private_fd(low));
  BOOST_CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  private_fd_close(fd);
  BOOST_CHECK(!is_private_fd(fd));
  BOOST_CHECK_EQUAL(fcntl(fd, F_GETFD), -1);
}

BOOST_AUTO_TEST_CASE(an_error_passes_through) {
  BOOST_CHECK_EQUAL(private_fd_adopt(-24), -24);
  private_fd_close(-1);
  BOOST_CHECK(!is_private_fd(-1));
  BOOST_CHECK(!is_private_fd(1 << 30));
}

BOOST_AUTO_TEST_CASE(a_child_can_close_them_all_and_nothing_else) {
  const int fd = private_fd_adopt(eventfd(0, 0));
  const int foreign = eventfd(0, EFD_CLOEXEC);
  const pid_t child = fork();
  if (child == 0) {
    private_fd_close_all();
    const bool gone = fcntl(fd, F_GETFD) == -1 && !is_private_fd(fd);
    _exit(gone && fcntl(foreign, F_GETFD) != -1 ? 0 : 1);
  }
  int status = -1;
  BOOST_REQUIRE_EQUAL(waitpid(child, &status, 0), child);
  BOOST_CHECK_EQUAL(status, 0);
  BOOST_CHECK(is_private_fd(fd));
  private_fd_close(fd);
  close(foreign);
}

BOOST_AUTO_TEST_CASE(duplicates_can_be_had_when_no_number_is_free) {
  const int blank = private_fd_adopt(eventfd(0, EFD_CLOEXEC));
  BOOST_CHECK(private_fd_make_reserve(blank, 1));
  BOOST_CHECK(private_fd_make_reserve(blank, kMostInReserve));
  BOOST_CHECK(private_fd_make_reserve(blank, kMostInReserve));  // the reserve exists already
  const int file = eventfd(7, EFD_CLOEXEC);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{3000, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  std::vector<int> others;
  for (int fd = dup(0); fd >= 0; fd = dup(0)) others.push_back(fd);
  for (int round = 0; round < 3; ++round) {
    const int first = private_fd_duplicate(file);
    const int second = private_fd_duplicate(file);
    BOOST_CHECK_EQUAL(private_fd_duplicate(file), -EMFILE);
    BOOST_CHECK_EQUAL(private_fd_duplicate(-1), -EBADF);
    for (const int copy : {first, second}) {
      BOOST_REQUIRE_GE(copy, 0);
      BOOST_CHECK(is_private_fd(copy));
      uint64_t value = 0;
      BOOST_CHECK_EQUAL(read(copy, &value, sizeof value), 8);
      BOOST_CHECK_EQUAL(value, 7);
      BOOST_CHECK_EQUAL(write(file, &value, sizeof value), 8);
      private_fd_close(copy);
      // The number is kept, but the file is not.
      BOOST_CHECK(is_private_fd(copy));
      pollfd readable{copy, POLLIN, 0};
      BOOST_CHECK_EQUAL(poll(&readable, 1, 0), 0);
    }
    BOOST_CHECK_EQUAL(dup(0), -1);
  }
  for (const int fd : others) close(fd);
  setrlimit(RLIMIT_NOFILE, &before);
  close(file);
}

BOOST_AUTO_TEST_SUITE_END()

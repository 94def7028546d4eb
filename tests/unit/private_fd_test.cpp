#include "engine/private_fd.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

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

BOOST_AUTO_TEST_SUITE_END()

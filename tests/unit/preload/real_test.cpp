#include "preload/real.hpp"

#include <dlfcn.h>
#include <fcntl.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <string_view>
#include <vector>

namespace preload = sidestep::preload;
namespace real = sidestep::preload::real;

namespace {

std::vector<std::string_view> g_lacked;

/// While it lives, the C library seems to lack these functions.
struct LackingLibrary {
  explicit LackingLibrary(std::vector<std::string_view> names) {
    g_lacked = std::move(names);
    preload::resolve_real_by([](const char* name) -> void* {
      return std::find(g_lacked.begin(), g_lacked.end(), name) != g_lacked.end()
                 ? nullptr
                 : dlsym(RTLD_NEXT, name);
    });
  }
  ~LackingLibrary() { preload::resolve_real_slow(); }
};

/// Calls `call` and returns what it has made of errno.
template <typename Call>
int errno_after(const Call& call) {
  errno = 0;
  call();
  return errno;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(real_calls)

BOOST_AUTO_TEST_CASE(this_c_library_has_every_required_call) {
  preload::resolve_real_slow();
  BOOST_CHECK(preload::missing_required_call() == nullptr);
  BOOST_CHECK(!real::is_missing(real::read));
  BOOST_CHECK_EQUAL(real::fcntl(-1, F_GETFD), -1);
  BOOST_CHECK_EQUAL(errno_after([] { real::fcntl(-1, F_GETFD); }), EBADF);
}

BOOST_AUTO_TEST_CASE(a_missing_optional_call_fails_with_enosys) {
  const LackingLibrary lacking({"epoll_pwait2", "preadv2", "sigset", "fcntl64", "_Fork"});
  BOOST_CHECK(preload::missing_required_call() == nullptr);
  BOOST_CHECK(real::is_missing(real::_Fork));
  BOOST_CHECK(!real::is_missing(real::fork));
  BOOST_CHECK_EQUAL(real::epoll_pwait2(0, nullptr, 0, nullptr, nullptr), -1);
  BOOST_CHECK_EQUAL(real::preadv2(0, nullptr, 0, 0, 0), -1);
  BOOST_CHECK_EQUAL(real::fcntl64(0, F_GETFD), -1);
  BOOST_CHECK_EQUAL(real::_Fork(), -1);
  BOOST_CHECK(real::sigset(SIGUSR1, SIG_DFL) == SIG_ERR);
  BOOST_CHECK_EQUAL(errno_after([] { real::fcntl64(0, F_GETFD); }), ENOSYS);
  BOOST_CHECK_EQUAL(errno_after([] { real::sigset(SIGUSR1, SIG_DFL); }), ENOSYS);
}

BOOST_AUTO_TEST_CASE(a_missing_required_call_is_named_and_fails_in_its_own_way) {
  const LackingLibrary lacking({"fdopen", "pthread_cancel", "_exit", "epoll_pwait2"});
  BOOST_CHECK_EQUAL(preload::missing_required_call(), std::string_view("fdopen"));
  BOOST_CHECK(real::fdopen(0, "r") == nullptr);
  BOOST_CHECK_EQUAL(errno_after([] { real::fdopen(0, "r"); }), ENOSYS);
  // It returns its error.
  BOOST_CHECK_EQUAL(real::pthread_cancel({}), ENOSYS);
  BOOST_CHECK_EQUAL(errno_after([] { real::pthread_cancel({}); }), 0);
  real::_exit(1);  // it cannot report anything
}

BOOST_AUTO_TEST_CASE(what_was_missing_is_found_again) {
  { const LackingLibrary lacking({"read", "poll"}); }
  BOOST_CHECK(preload::missing_required_call() == nullptr);
  BOOST_CHECK(!real::is_missing(real::read));
}

BOOST_AUTO_TEST_SUITE_END()

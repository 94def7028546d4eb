// What the kernel says about a process: whether it can do anything at the moment.
#include "engine/base/process_state.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>

using namespace sidestep::engine;

namespace {

/// A process that only waits, or only computes.
class Child {
 public:
  explicit Child(bool computes) : pid_(fork()) {
    if (pid_ != 0) return;
    volatile bool waits = !computes;
    for (;;)
      if (waits) pause();
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  bool is_soon(ProcessState state) const {
    for (int i = 0; i < 5000; ++i) {
      if (state_of_process(pid_) == state) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  const pid_t pid_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(process_state)

BOOST_AUTO_TEST_CASE(a_process_that_wants_a_processor_runs) {
  const Child child(true);
  BOOST_CHECK(child.is_soon(ProcessState::runs));
  // It runs even though others compete with it and most of them have no processor.
  const Child others[4] = {Child(true), Child(true), Child(true), Child(true)};
  for (int i = 0; i < 50; ++i) {
    BOOST_REQUIRE(state_of_process(child.pid()) == ProcessState::runs);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

BOOST_AUTO_TEST_CASE(one_that_waits_sleeps) {
  const Child child(false);
  BOOST_CHECK(child.is_soon(ProcessState::sleeps));
}

BOOST_AUTO_TEST_CASE(one_that_was_stopped_is_until_it_goes_on) {
  for (const bool computes : {false, true}) {
    const Child child(computes);
    kill(child.pid(), SIGSTOP);
    BOOST_CHECK(child.is_soon(ProcessState::stopped));
    kill(child.pid(), SIGCONT);
    BOOST_CHECK(child.is_soon(computes ? ProcessState::runs : ProcessState::sleeps));
  }
}

BOOST_AUTO_TEST_CASE(of_one_that_is_not_there_nothing_is_known) {
  BOOST_CHECK(state_of_process(0x7fffffff) == ProcessState::unknown);
}

BOOST_AUTO_TEST_SUITE_END()

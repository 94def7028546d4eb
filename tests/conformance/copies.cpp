// Children made by clone(2) and its kin, not by fork(). A child that shares memory or descriptors
// with a parent that runs beside it ends the parent's engine: see tests/programs/last_things.
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

using Body = int (*)(Pair& pair);

struct Task {
  Body body;
  Pair* pair;
};

int run(void* task) {
  const auto& given = *static_cast<const Task*>(task);
  return given.body(*given.pair);
}

/// Makes a child with its own stack.
template <int kFlags>
long by_clone(Task& task) {
  alignas(16) static std::array<char, 256 << 10> stack;
  return clone(run, stack.data() + stack.size(), kFlags | SIGCHLD, &task);
}

/// Runs the task in the child. For calls that return in the child as well.
long in_child(long pid, Task& task) {
  if (pid == 0) _exit(run(&task));
  return pid;
}

// The kernel's layout. <linux/sched.h> cannot be included together with <sched.h>.
struct CloneArguments {
  uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

struct Way {
  const char* name;
  long (*start)(Task& task);
};

// SYS_vfork is not among them: its child returns from syscall() and overwrites the address that the
// parent will return to, even without Sidestep.
// clang-format off
const Way kWays[] = {
    {"clone", by_clone<0>},
    {"clone_vfork", by_clone<CLONE_VM | CLONE_VFORK>},
    {"SYS_clone", [](Task& task) { return in_child(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr), task); }},
    {"SYS_clone3", [](Task& task) {
       CloneArguments arguments{};
       arguments.exit_signal = SIGCHLD;
       return in_child(syscall(SYS_clone3, &arguments, sizeof arguments), task);
     }},
#ifdef SYS_fork
    {"SYS_fork", [](Task& task) { return in_child(syscall(SYS_fork), task); }},
#endif
};
// clang-format on

int code_in_child(const Way& way, Body body, Pair& pair) {
  Task task{body, &pair};
  const long child = way.start(task);
  int status = 0;
  if (child < 0 || waitpid(static_cast<pid_t>(child), &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/// Receives without memory from malloc, because one of the children uses its parent's memory.
bool receives(int fd, const char* expected, size_t length) {
  char data[16];
  return recv(fd, data, length, MSG_WAITALL) == static_cast<ssize_t>(length) &&
         std::string_view(data, length) == std::string_view(expected, length);
}

CASES(copies) {
  for (const Way& way : kWays) {
    const std::string name = std::string("processes.") + way.name;
    add_case(name + ".a_child_sends", [way] {
      Pair pair;
      NOTE(code_in_child(
          way, [](Pair& p) { return send(p.client(), "child", 5, 0) == 5 ? 0 : 1; }, pair));
      NOTE(take(pair.server(), 5));
      give(pair.client(), "parent");
      NOTE(take(pair.server(), 6));
    });
    add_case(name + ".a_child_receives_what_was_sent_before", [way] {
      Pair pair;
      give(pair.client(), "before");
      await_bytes(pair.server(), 6);
      NOTE(code_in_child(
          way, [](Pair& p) { return receives(p.server(), "before", 6) ? 0 : 1; }, pair));
      give(pair.client(), "after");
      NOTE(take(pair.server(), 5));
    });
    add_case(name + ".a_stream_of_later", [way] {
      Pair pair;
      NOTE(code_in_child(
          way, [](Pair&) { return 7; }, pair));
      const int fds[] = {pair.client(), pair.server()};
      give(fds[0], "still");
      NOTE(take(fds[1], 5));
      give(fds[1], "here");
      NOTE(take(fds[0], 4));
    });
  }
}

}  // namespace
}  // namespace conformance

// A process that gives up rights, or unshares what it shares, while it has a stream.
//
//   rights WAY [CALL]
//
// CALL is the call that another thread of the process is in meanwhile: recv, poll, epoll, select.
// Prints the result of WAY, what the threads of the process may do afterwards, and whether the
// stream still works. The parent has the other end.
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/two_processes.hpp"

namespace {

using namespace pair;

void say(const char* what, long result) {
  std::printf("%s: %s\n", what, result >= 0 ? "done" : strerrorname_np(errno));
}

/// Prints the different values of one status line among the threads of this process.
void say_of_threads(const std::string& line) {
  std::set<std::string> values;
  DIR* const threads = opendir("/proc/self/task");
  while (const dirent* entry = readdir(threads)) {
    std::ifstream status("/proc/self/task/" + std::string(entry->d_name) + "/status");
    for (std::string text; std::getline(status, text);)
      if (text.starts_with(line + ":")) values.insert(text.substr(line.size() + 1));
  }
  closedir(threads);
  for (const std::string& value : values) std::printf("%s:%s\n", line.c_str(), value.c_str());
}

void say_nice_of_threads() {
  std::set<std::string> values;
  DIR* const threads = opendir("/proc/self/task");
  while (const dirent* entry = readdir(threads)) {
    const int number = std::atoi(entry->d_name);
    if (number == 0) continue;
    values.insert(std::to_string(getpriority(PRIO_PROCESS, static_cast<id_t>(number))) + " " +
                  std::to_string(sched_getscheduler(number)));
  }
  closedir(threads);
  for (const std::string& value : values) std::printf("nice and policy: %s\n", value.c_str());
}

/// Installs a filter that kills the process on any system call but read, write, close, accept,
/// recvfrom, exit and exit_group.
long enter_filter() {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const int number :
       {SYS_read, SYS_write, SYS_close, SYS_accept, SYS_recvfrom, SYS_exit, SYS_exit_group}) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
}

long drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2]{};
  return syscall(SYS_capset, &header, none);
}

/// Closes `fd` and waits, to show whether the peer sees the end of the stream.
void close_and_wait(int fd) {
  close(fd);
  pause();
}

struct Way {
  const char* name;
  void (*run)(int fd);
  bool goes_on = false;  // runs on without the stream
};

// clang-format off
const Way kWays[] = {
    {"unshare_files", [](int fd) { say("unshare", unshare(CLONE_FILES)); std::fflush(stdout); close_and_wait(fd); }, true},
    {"unshare_by_number", [](int fd) { say("unshare", syscall(SYS_unshare, CLONE_FILES)); std::fflush(stdout); close_and_wait(fd); }, true},
    {"close_range", [](int fd) {
       say("close_range", close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), CLOSE_RANGE_UNSHARE));
       std::fflush(stdout);
       pause();
     }, true},
    {"unshare_user", [](int) { say("unshare", unshare(CLONE_NEWUSER)); }},
    {"unshare_network", [](int) { say("unshare", unshare(CLONE_NEWNET)); }},
    {"join_user", [](int) {
       const int fd = open("/proc/self/ns/net", O_RDONLY);
       say("setns", setns(fd, 0));
     }},
    {"capabilities", [](int) { say("capset", drop_capabilities()); say_of_threads("CapEff"); }},
    {"bounding_set", [](int) { say("prctl", prctl(PR_CAPBSET_DROP, CAP_SYS_TIME)); say_of_threads("CapBnd"); }},
    {"no_new_privileges", [](int) { say("prctl", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); say_of_threads("NoNewPrivs"); }},
    {"no_filter", [](int) {  // asks whether there are filters
       say("prctl", prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr));
     }},
    {"users_by_libc", [](int) { say("setgid", setgid(65534)); say("setuid", setuid(65534)); say_of_threads("Uid"); say_of_threads("CapEff"); }},
    {"users_by_number", [](int) { say("setuid", syscall(SYS_setuid, 65534)); say_of_threads("Uid"); }},
    {"landlock", [](int) {
       prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
       landlock_ruleset_attr rules{};
       rules.handled_access_fs = LANDLOCK_ACCESS_FS_WRITE_FILE;
       const long fd = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
       say("landlock", fd < 0 ? fd : syscall(SYS_landlock_restrict_self, fd, 0));
     }},
    {"filter", [](int fd) {
       std::fflush(stdout);
       if (enter_filter() != 0 || !ping(fd)) syscall(SYS_exit_group, 1);
       syscall(SYS_exit_group, 0);
     }},
    {"strict", [](int fd) {
       std::fflush(stdout);
       prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
       syscall(SYS_exit, ping(fd) ? 0 : 1);
     }},
};
// clang-format on

/// Lets a child accept in a sandbox that it entered before it had any stream.
int accept_in_filter(bool kills) {
  int port = 0;
  const int listener = listen_on_loopback(4, port);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (enter_filter() != 0) syscall(SYS_exit_group, 1);
    for (int i = 0; i < 2; ++i) {
      const int fd = accept(listener, nullptr, nullptr);
      char byte = 0;
      while (read(fd, &byte, 1) == 1)
        if (write(fd, &byte, 1) != 1) syscall(SYS_exit_group, 2);
      close(fd);
    }
    syscall(SYS_exit_group, kills ? 0 : 3);
  }
  close(listener);
  for (int i = 0; i < 2; ++i) {
    const int fd = connect_on_loopback(port);
    bool whole = true;
    for (int turn = 0; turn < 100; ++turn) {
      whole = whole && ping(fd);
      pause_ms(1);
    }
    std::printf("stream %d: %s\n", i, whole ? "works" : "broken");
    close(fd);
  }
  print_end_of(child);
  return 0;
}

void wait_by(const std::string& call, int fd) {
  if (call == "poll") {
    pollfd one{fd, POLLIN, 0};
    std::printf("poll: %d\n", poll(&one, 1, 20'000));
  } else if (call == "epoll") {
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {}};
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    std::printf("epoll: %d\n", epoll_wait(set, &event, 1, 20'000));
  } else if (call == "select") {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    timeval limit{20, 0};
    std::printf("select: %d\n", select(fd + 1, &in, nullptr, nullptr, &limit));
  }
}

/// Runs `run` while another thread of the program is in a call on a stream.
void beside_a_thread(const std::string& call, void (*run)(int fd), int fd, int other) {
  std::thread waits([&call, other] {
    char byte = 0;
    wait_by(call, other);
    std::printf("the other thread: %zd\n", recv(other, &byte, 1, 0));
  });
  pause_ms(100);
  run(fd);
  std::printf("stream: %s\n", ping(fd) ? "works" : "broken");
  shutdown(other, SHUT_WR);  // the parent answers
  waits.join();
}

int run(const Way& way, const std::string& beside) {
  int port = 0;
  const int listener = listen_on_loopback(4, port);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(listener);
    const int fd = connect_on_loopback(port);
    leave_kernel(fd);
    if (!beside.empty()) {
      const int other = connect_on_loopback(port);
      leave_kernel(other);
      beside_a_thread(beside, way.run, fd, other);
    } else {
      way.run(fd);
      std::printf("stream: %s\n", ping(fd) ? "works" : "broken");
      // Makes another stream in whatever state the process is now.
      const int late = connect_on_loopback(port);
      std::printf("another stream: %s\n",
                  late >= 0 && ping(late) && ping(late) ? "works" : "broken");
    }
    std::fflush(stdout);
    std::exit(0);
  }
  const int first = accept(listener, nullptr, nullptr);
  std::thread serve_others([listener, beside = !beside.empty()] {
    const int other = accept(listener, nullptr, nullptr);
    echo(other);
    if (beside && send(other, "x", 1, MSG_NOSIGNAL) != 1) die("send");
    pause();
  });
  const char* const end = echo(first);
  pause_ms(300);  // the child has more to print
  std::printf("parent sees: %s\n", end);
  std::fflush(stdout);
  serve_others.detach();
  if (way.goes_on) kill(child, SIGTERM);
  print_end_of(child);
  std::fflush(stdout);
  std::exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  const std::string beside = argc > 2 ? argv[2] : "";
  if (name == "accept_in_filter") return accept_in_filter(true);
  if (name == "nice") {
    setpriority(PRIO_PROCESS, 0, 5);
    static const Way nice{"nice", [](int) { say_nice_of_threads(); }};
    return run(nice, "");
  }
  for (const Way& way : kWays)
    if (name == way.name) return run(way, beside);
  std::fputs("usage: rights WAY [CALL]\n", stderr);
  return 2;
}

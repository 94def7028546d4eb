// Streams that are handed to other programs and other processes: exec, posix_spawn, SCM_RIGHTS.
#include <fcntl.h>
#include <pty.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

int code_of(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

char* const kCat[] = {const_cast<char*>("cat"), nullptr};
char* const kNoEnvironment[] = {nullptr};  // so that the started program is not under Sidestep

/// Called in a child. Puts `fd` where a program that inetd starts finds its stream.
void make_standard(int fd) {
  if (dup2(fd, STDIN_FILENO) < 0 || dup2(fd, STDOUT_FILENO) < 0) _exit(100);
}

/// What the client has done, and the server has read, before the server's end is handed over.
enum class Before { nothing, sent, ended, read_to_the_end };

struct Beginning {
  Before before;
  const char* name;
};

const Beginning kBeginnings[] = {
    {Before::nothing, ".plain"},
    {Before::sent, ".unread"},
    {Before::ended, ".unread_and_ended"},
    {Before::read_to_the_end, ".read_to_the_end"},
};

void begin(const Pair& pair, Before before) {
  if (before == Before::nothing) return;
  if (before == Before::ended) {
    // Bytes that came by the engine can't go back to the kernel if the direction moved and then
    // ended on the anchor. A peer that forks also moves like that (sidestep-limits(7)), but this
    // case does not.
    calm(pair);
  }
  give(pair.client(), "unread ");
  await_bytes(pair.server(), 7);
  if (before == Before::sent) return;
  SEE(shutdown(pair.client(), SHUT_WR));
  await_end(pair.server());
  if (before == Before::read_to_the_end) NOTE(take(pair.server(), 100));
}

void go_on(const Pair& pair, Before before) {
  if (before == Before::nothing || before == Before::sent) {
    give(pair.client(), "hello");
    SEE(shutdown(pair.client(), SHUT_WR));
  }
  NOTE(take(pair.client(), 100));
}

/// Runs a cat at the server's end. `start` starts it and returns its pid. Bytes that were unread
/// before, bytes that come later, and then the end must pass through it.
void through_cat(const std::function<pid_t(Pair&)>& start, Before before) {
  Pair pair;
  begin(pair, before);
  const pid_t child = start(pair);
  pair.close_server();
  go_on(pair, before);
  NOTE(code_of(child));
}

/// Runs `exec` in a child whose standard input and output are the server's end.
std::function<pid_t(Pair&)> forked(void (*exec)()) {
  return [exec](Pair& pair) {
    const pid_t child = fork_quietly();
    if (child != 0) return child;
    make_standard(pair.server());
    pair.close_client();
    pair.close_server();
    exec();
    _exit(101);
  };
}

struct Way {
  const char* name;
  void (*exec)();
};

// clang-format off
const Way kWays[] = {
    {"execve", [] { execve("/bin/cat", kCat, environ); }},
    {"execve_without_sidestep", [] { execve("/bin/cat", kCat, kNoEnvironment); }},
    {"execv", [] { execv("/bin/cat", kCat); }},
    {"execvp", [] { execvp("cat", kCat); }},
    {"execvpe", [] { execvpe("cat", kCat, environ); }},
    {"execl", [] { execl("/bin/cat", "cat", "-u", "-", nullptr); }},
    {"execlp", [] { execlp("cat", "cat", nullptr); }},
    {"execle", [] { execle("/bin/cat", "cat", "-", nullptr, kNoEnvironment); }},
    {"fexecve", [] { fexecve(open("/bin/cat", O_RDONLY | O_CLOEXEC), kCat, environ); }},
    {"execveat", [] { execveat(AT_FDCWD, "/bin/cat", kCat, environ, 0); }},
};
// clang-format on

pid_t spawn_cat(Pair& pair, char* const* environment) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair.server(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pair.server(), STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, pair.client());
  posix_spawn_file_actions_addclose(&actions, pair.server());
  pid_t child = -1;
  if (posix_spawn(&child, "/bin/cat", &actions, nullptr, kCat, environment) != 0) child = -1;
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

pid_t vfork_cat(Pair& pair) {
  const int client = pair.client();
  const int server = pair.server();
  const pid_t child = vfork();
  if (child != 0) return child;
  if (dup2(server, STDIN_FILENO) < 0 || dup2(server, STDOUT_FILENO) < 0) _exit(100);
  close(client);
  close(server);
  execve("/bin/cat", kCat, environ);
  _exit(101);
}

CASES(programs) {
  for (const auto& [before, kind] : kBeginnings) {
    for (const Way& way : kWays)
      add_case("programs." + std::string(way.name) + kind,
               [exec = way.exec, before = before] { through_cat(forked(exec), before); });
    add_case(std::string("programs.posix_spawn") + kind, [before = before] {
      through_cat([](Pair& pair) { return spawn_cat(pair, environ); }, before);
    });
    add_case(std::string("programs.posix_spawn_without_sidestep") + kind, [before = before] {
      through_cat([](Pair& pair) { return spawn_cat(pair, kNoEnvironment); }, before);
    });
    add_case(std::string("programs.vfork") + kind,
             [before = before] { through_cat(vfork_cat, before); });
  }
}

/// Receives a descriptor over a Unix domain socket. Returns -1 if none came.
int receive_descriptor(int fd) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(fd, &message, 0) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int passed = -1;
  std::memcpy(&passed, CMSG_DATA(header), sizeof passed);
  return passed;
}

ssize_t send_descriptor(int fd, int passed, bool by_sendmmsg = false) {
  char byte = 'd';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  mmsghdr messages[1] = {};
  msghdr& message = messages[0].msg_hdr;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof passed);
  std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
  return by_sendmmsg ? sendmmsg(fd, messages, 1, 0) : sendmsg(fd, &message, 0);
}

/// A process that existed before the stream did. It echoes what comes over a descriptor that is
/// passed to it: either by another program without Sidestep, or by itself, and then with a last
/// word.
class Helper {
 public:
  explicit Helper(bool other_program) {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_.data()) != 0) std::abort();
    child_ = fork_quietly();
    if (child_ != 0) {
      close(ends_[1]);
      return;
    }
    close(ends_[0]);
    const int fd = receive_descriptor(ends_[1]);
    if (other_program) {
      if (fd >= 0) make_standard(fd);
      execve("/bin/cat", kCat, kNoEnvironment);
      _exit(101);
    }
    char data[100];
    ssize_t got = 0;
    while ((got = recv(fd, data, sizeof data, 0)) > 0)
      if (send(fd, data, static_cast<size_t>(got), 0) != got) _exit(102);
    _exit(send(fd, " and bye", 8, 0) == 8 ? 0 : 103);
  }
  ~Helper() { close(ends_[0]); }
  Helper(const Helper&) = delete;
  int fd() const { return ends_[0]; }
  pid_t pid() const { return child_; }

 private:
  std::array<int, 2> ends_{};
  pid_t child_ = -1;
};

void pass(bool other_program, Before before, bool by_sendmmsg) {
  const Helper helper(other_program);
  Pair pair;
  begin(pair, before);
  SEE(send_descriptor(helper.fd(), pair.server(), by_sendmmsg));
  pair.close_server();
  go_on(pair, before);
  NOTE(code_of(helper.pid()));
}

CASES(passing) {
  for (const auto& [before, kind] : kBeginnings)
    for (const bool other : {false, true})
      for (const bool many : {false, true})
        add_case(std::string("programs.") + (many ? "sendmmsg" : "sendmsg") + ".descriptor" +
                     (other ? "_to_a_program_without_sidestep" : "") + kind,
                 [=, before = before] { pass(other, before, many); });
}

}  // namespace

CASE(programs, a_descriptor_passed_to_oneself) {
  Pair pair;
  std::array<int, 2> ends{};
  SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()));
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(send_descriptor(ends[0], pair.server()));
  const int copy = receive_descriptor(ends[1]);
  NOTE(take(copy, 3));
  NOTE(take(pair.server(), 3));
  give(copy, "by the copy");
  give(pair.server(), ", by the first");
  NOTE(take(pair.client(), 25));
  close(copy);
  give(pair.server(), "x");
  NOTE(take(pair.client(), 1));
  close(ends[0]);
  close(ends[1]);
}

CASE(programs, a_stream_inherited_by_number) {
  Pair pair;
  const pid_t child = fork_quietly();
  if (child == 0) {
    make_standard(pair.client());
    execl("/bin/sh", "sh", "-c", "echo one; echo two; exit 3", nullptr);
    _exit(101);
  }
  NOTE(take(pair.server(), 8));
  NOTE(code_of(child));
  give(pair.client(), "and the parent");
  NOTE(take(pair.server(), 14));
}

CASE(programs, exec_that_fails) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(execl("/nowhere", "nowhere", nullptr));
  SEE(execlp("/dev/null", "null", nullptr));
  NOTE(take(pair.server(), 6));
  give(pair.server(), "goes on");
  NOTE(take(pair.client(), 7));
}

CASE(programs, exec_ends_what_is_closed_by_it) {
  // The child makes a stream to the parent, and exec closes it.
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  const pid_t child = fork_quietly();
  if (child == 0) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0) _exit(100);
    char byte = 0;
    if (recv(fd, &byte, 1, 0) != 1 || send(fd, "whole", 5, 0) != 5) _exit(102);
    execl("/bin/true", "true", nullptr);
    _exit(101);
  }
  const int server = accept(listener, nullptr, nullptr);
  usleep(20'000);  // time to leave the kernel
  give(server, "x");
  NOTE(take(server, 100));
  NOTE(code_of(child));
  close(server);
  close(listener);
}

CASE(programs, system_and_popen) {
  Pair pair;
  give(pair.client(), "before");
  NOTE(system("exit 7") / 256);
  FILE* const output = popen("echo from a shell", "r");
  char line[100] = {};
  NOTE(fgets(line, sizeof line, output) != nullptr);
  NOTE(std::string(line));
  NOTE(pclose(output));
  NOTE(take(pair.server(), 6));
  give(pair.server(), "after");
  NOTE(take(pair.client(), 5));
}

CASE(programs, daemon) {
  Pair pair;
  const pid_t child = fork_quietly();
  if (child == 0) {
    if (daemon(1, 1) != 0) _exit(100);
    _exit(send(pair.client(), "daemon", 6, 0) == 6 ? 0 : 1);
  }
  NOTE(code_of(child));
  NOTE(take(pair.server(), 6));
  give(pair.server(), "x");
  NOTE(take(pair.client(), 1));
}

CASE(programs, forkpty) {
  Pair pair;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) _exit(send(pair.client(), "child", 5, 0) == 5 ? 0 : 1);
  NOTE(terminal >= 0);
  NOTE(take(pair.server(), 5));
  NOTE(code_of(child));
  close(terminal);
}

}  // namespace conformance

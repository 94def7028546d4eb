// A process that has a stream, and that ends or is copied in ways that few programs use.
//
//   last_things WAY
//
// Its parent has the other end and prints what it sees of the process's end.
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "tests/programs/raw_call.hpp"
#include "tests/programs/two_processes.hpp"

namespace {

using namespace pair;

int stream = -1;

void handlers_ran() {
  std::printf("handlers ran: %s\n", ping(stream) ? "the stream works" : "the stream is broken");
  std::fflush(stdout);
}

void* last_thread(void* by_library) {
  pause_ms(50);  // main() has ended by then
  if (by_library != nullptr) {
    std::printf("thread: %s\n", ping(stream) ? "the stream works" : "the stream is broken");
    std::fflush(stdout);
    return nullptr;
  }
  raw_call(SYS_getppid);
  std::printf("the thread has not been killed\n");
  return nullptr;
}

void start_last_thread(bool ends_by_library) {
  pthread_t thread{};
  pthread_create(&thread, nullptr, last_thread, ends_by_library ? &stream : nullptr);
  pthread_detach(thread);
}

/// Installs a filter under which getppid() kills the calling thread. Bypasses the library, as if
/// the filter had been there before the program started.
void enter_killing_filter() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{4, program};
  raw_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1);
  raw_call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, reinterpret_cast<long>(&filter));
}

int say_write(const char* who) {
  const ssize_t written = send(stream, "c", 1, MSG_NOSIGNAL);
  std::printf("%s: %s\n", who, written == 1 ? "written" : strerrorname_np(errno));
  char byte = 0;
  const ssize_t got = recv(stream, &byte, 1, 0);
  std::printf("%s: %s\n", who, got == 1 ? "read" : got == 0 ? "end" : strerrorname_np(errno));
  std::fflush(stdout);
  return 0;
}

/// Makes a child that is a copy of this process, without the library being told.
void copy_past_library(long flags) {
  std::fflush(stdout);
  const long pid = raw_call(SYS_clone, flags | SIGCHLD);
  if (pid == 0) {
    say_write("copy");
    int port = 0;
    const int listener = listen_on_loopback(1, port);  // for streams of its own
    std::thread peer([&] {
      const int own = connect_on_loopback(port);
      ping(own);
      close(own);
    });
    const int fd = accept(listener, nullptr, nullptr);
    std::printf("copy: its own stream: %s\n", echo(fd));
    peer.join();
    close(fd);
    if ((flags & CLONE_FILES) == 0) close(stream);
    std::exit(0);
  }
  print_end_of(static_cast<pid_t>(pid));
}

/// Makes a child that runs beside its parent and shares its memory or its descriptors.
void share(int flags) {
  alignas(16) static char stack[256 << 10];
  const int pid = clone(
      [](void*) {
        char byte = 'c';
        return send(stream, &byte, 1, MSG_NOSIGNAL) == 1 && recv(stream, &byte, 1, 0) == 1 ? 0 : 1;
      },
      stack + sizeof stack, flags | SIGCHLD, nullptr);
  print_end_of(pid);
  std::printf("stream: %s\n", ping(stream) ? "works" : "broken");
}

/// Copies a process that has just got its first stream, as soon as the library's threads may exist.
/// The copy changes its groups.
int change_groups_in_raw_child() {
  int port = 0;
  const int listener = listen_on_loopback(1, port);
  const pid_t client = fork();
  if (client == 0) {
    char text[2];
    _exit(recv(connect_on_loopback(port), text, sizeof text, MSG_WAITALL) == 2 ? 0 : 1);
  }
  const int fd = accept(listener, nullptr, nullptr);
  const long pid = raw_call(SYS_clone, SIGCHLD);
  if (pid == 0) {
    alarm(10);
    setgroups(0, nullptr);
    const bool sent = send(fd, "ok", 2, MSG_NOSIGNAL) == 2;
    _exit(sent ? 0 : 1);
  }
  close(fd);
  print_end_of(static_cast<pid_t>(pid));
  print_end_of(client);
  return 0;
}

struct Way {
  const char* name;
  void (*run)();
};

// clang-format off
const Way kWays[] = {
    {"pthread_exit", [] { std::atexit(handlers_ran); start_last_thread(true); pthread_exit(nullptr); }},
    {"killed_thread", [] { std::atexit(handlers_ran); enter_killing_filter(); start_last_thread(false); pthread_exit(nullptr); }},
    {"killed_threads", [] { std::atexit(handlers_ran); enter_killing_filter(); start_last_thread(false); raw_call(SYS_getppid); }},
    {"exit_by_number", [] { syscall(SYS_exit, 7); }},
    {"exit_group", [] { syscall(SYS_exit_group, 7); }},
    {"quick_exit", [] { at_quick_exit(handlers_ran); std::quick_exit(7); }},
    {"execve_by_number", [] {
       char* const words[] = {const_cast<char*>("true"), nullptr};
       syscall(SYS_execve, "/bin/true", words, environ);
     }},
    {"memory", [] { share(CLONE_VM); }},
    {"descriptors", [] { share(CLONE_FILES); }},
    {"memory_and_descriptors", [] { share(CLONE_VM | CLONE_FILES); }},
    {"copy", [] { copy_past_library(0); std::printf("stream: %s\n", ping(stream) ? "works" : "broken"); }},
    {"copy_of_memory", [] { copy_past_library(CLONE_FILES); std::printf("stream: %s\n", ping(stream) ? "works" : "broken"); }},
};
// clang-format on

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "raw_child") return change_groups_in_raw_child();
  if (name == "log") {
    // The program's data file has the descriptor number of standard error.
    close(STDERR_FILENO);
    if (open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600) != STDERR_FILENO) return 3;
  }
  int port = 0;
  const int listener = listen_on_loopback(1, port);
  const pid_t child = fork();
  if (child == 0) {
    close(listener);
    stream = connect_on_loopback(port);
    leave_kernel(stream);
    if (name == "log") return write(STDERR_FILENO, "record", 6) == 6 ? 0 : 1;
    if (name == "link") {
      // The name of the document leads to somebody else's file.
      const std::string path = std::string(argv[2]) + "." + std::to_string(getpid()) + ".part";
      return symlink(argv[3], path.c_str()) == 0 ? 0 : 1;
    }
    for (const Way& way : kWays)
      if (name == way.name) {
        way.run();
        std::exit(0);
      }
    return 2;
  }
  const int fd = accept(listener, nullptr, nullptr);
  close(listener);
  const char* const end = echo(fd);
  std::printf("parent sees: %s\n", end);
  print_end_of(child);
  return 0;
}

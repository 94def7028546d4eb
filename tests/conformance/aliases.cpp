// On a stream, the second names that libc exports for calls do what the first ones do.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

extern "C" {
ssize_t __read(int fd, void* data, size_t size);
ssize_t __write(int fd, const void* data, size_t size);
ssize_t __send(int fd, const void* data, size_t size, int flags);
int __connect(int fd, const sockaddr* address, socklen_t length);
int __close(int fd);
int __dup2(int fd, int target);
int __fcntl(int fd, int command, ...);
FILE* _IO_fdopen(int fd, const char* mode);
int __poll(pollfd* fds, nfds_t count, int timeout);
int __select(int count, fd_set* read_set, fd_set* write_set, fd_set* except_set, timeval* timeout);
int __sigaction(int number, const struct sigaction* action, struct sigaction* before);
pid_t __fork();
}

namespace conformance {

CASE(aliases, read_and_write) {
  Pair pair;
  char buffer[8] = "";
  SEE(__write(pair.client(), "one ", 4));
  SEE(__send(pair.client(), "two", 3, MSG_NOSIGNAL));
  await_bytes(pair.server(), 7);
  SEE(__read(pair.server(), buffer, sizeof buffer));
  NOTE(std::string(buffer, 7));
}

CASE(aliases, waiting) {
  Pair pair;
  pollfd readable{pair.server(), POLLIN, 0};
  SEE(__poll(&readable, 1, 0));
  give(pair.client(), "x");
  SEE(__poll(&readable, 1, 1000));
  NOTE(readable.revents);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(pair.server(), &set);
  timeval limit{1, 0};
  SEE(__select(pair.server() + 1, &set, nullptr, nullptr, &limit));
  NOTE(take(pair.server(), 1));
}

CASE(aliases, descriptors) {
  Pair pair;
  const int number = __fcntl(pair.server(), F_DUPFD, 500);
  SEE(__dup2(pair.server(), number) == number);
  SEE(__fcntl(number, F_SETFL, O_NONBLOCK));
  char byte = 0;
  SEE(__read(pair.server(), &byte, 1));
  pair.close_server();
  give(pair.client(), "still");
  await_bytes(number, 5);
  NOTE(take(number, 5));
  SEE(__close(number));
  await_end(pair.client());
  NOTE(take(pair.client(), 1));
}

CASE(aliases, connecting) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  const int listener = listen_loopback(address, length);
  const int client = socket(address.ss_family, SOCK_STREAM, 0);
  SEE(__connect(client, reinterpret_cast<const sockaddr*>(&address), length));
  const int server = accept(listener, nullptr, nullptr);
  settle(client, server);
  give(client, "hello");
  NOTE(take(server, 5));
  forget(client);
  forget(server);
  close(client);
  close(server);
  close(listener);
}

CASE(aliases, a_file) {
  Pair pair;
  const int copy = dup(pair.server());
  FILE* const file = _IO_fdopen(copy, "r+");
  give(pair.client(), "line\n");
  char line[8] = "";
  NOTE(fgets(line, sizeof line, file) != nullptr);
  NOTE(line);
  SEE(fclose(file));
}

CASE(aliases, a_handler_and_a_child) {
  Pair pair;
  struct sigaction before {};
  struct sigaction action {};
  action.sa_handler = [](int) {};
  SEE(__sigaction(SIGUSR2, &action, &before));
  struct sigaction now {};
  SEE(__sigaction(SIGUSR2, nullptr, &now));
  NOTE(now.sa_handler == action.sa_handler);
  give(pair.client(), "for the child");
  await_bytes(pair.server(), 13);
  forget(pair.client());
  forget(pair.server());
  const pid_t child = __fork();
  if (child == 0) {
    char buffer[16];
    const ssize_t got = __read(pair.server(), buffer, sizeof buffer);
    _exit(got == 13 && __write(pair.server(), "back", 4) == 4 ? 0 : 1);
  }
  int status = -1;
  SEE(waitpid(child, &status, 0) == child);
  NOTE(status);
  NOTE(take(pair.client(), 4));
  sigaction(SIGUSR2, &before, nullptr);
}

}  // namespace conformance

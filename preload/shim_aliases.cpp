// Second names that the C library exports for some calls: each leads to the call itself.
//
// Old programs and some libraries (libnsl, sanitizers, runtimes that put a read() of their own in
// front) use them. tests/integration/test_names.py finds names that libc adds.
#include <fcntl.h>

#include <cstdarg>

#include "preload/export.hpp"
#include "preload/real.hpp"

SIDESTEP_EXPORT ssize_t __read(int fd, void* data, size_t size) {
  return read(fd, data, size);
}

SIDESTEP_EXPORT ssize_t __write(int fd, const void* data, size_t size) {
  return write(fd, data, size);
}

SIDESTEP_EXPORT ssize_t __send(int fd, const void* data, size_t size, int flags) {
  return send(fd, data, size, flags);
}

SIDESTEP_EXPORT int __connect(int fd, const sockaddr* address, socklen_t length) {
  return connect(fd, address, length);
}

SIDESTEP_EXPORT int __close(int fd) {
  return close(fd);
}

SIDESTEP_EXPORT int __dup2(int fd, int target) {
  return dup2(fd, target);
}

SIDESTEP_EXPORT int __fcntl(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(fd, command, argument);
}

SIDESTEP_EXPORT FILE* _IO_fdopen(int fd, const char* mode) {
  return fdopen(fd, mode);
}

SIDESTEP_EXPORT int __poll(pollfd* fds, nfds_t count, int timeout) {
  return poll(fds, count, timeout);
}

SIDESTEP_EXPORT int __select(int count, fd_set* read_set, fd_set* write_set, fd_set* except_set,
                             timeval* timeout) {
  return select(count, read_set, write_set, except_set, timeout);
}

SIDESTEP_EXPORT int __sigaction(int number, const struct sigaction* action,
                                struct sigaction* before) {
  return sigaction(number, action, before);
}

SIDESTEP_EXPORT pid_t __fork() {
  return fork();
}

// A program whose address space has run out (RLIMIT_AS) can go on with the streams that it has, and
// gets an error where something can't be done. Nothing aborts it.
//
//   no_memory DUPLICATES
//
// Prints {"duplicates": ..., "echoes": ..., "more": ..., "members": ...}: how often dup() worked,
// how many exchanges succeeded over the first descriptor and over the last, how many further
// streams worked, and how many epoll sets took the stream or refused it with ENOMEM.
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"

namespace {

using pair::die;

unsigned echo(int one, int other, unsigned count) {
  unsigned done = 0;
  for (; done < count; ++done) {
    char byte = 'e';
    if (send(one, &byte, 1, 0) != 1 || recv(other, &byte, 1, 0) != 1 ||
        send(other, &byte, 1, 0) != 1 || recv(one, &byte, 1, 0) != 1)
      break;
  }
  return done;
}

/// Limits the process to the address space that is mapped now.
void use_up_addresses() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0) die("getrlimit");
  limit.rlim_cur = 4096;
  if (setrlimit(RLIMIT_AS, &limit) != 0) die("setrlimit");
  if (mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) die("mmap");
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned wanted = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1000;
  const rlimit numbers{wanted + 1000, wanted + 1000};
  if (setrlimit(RLIMIT_NOFILE, &numbers) != 0) die("setrlimit");
  int port = 0;
  const int listening = pair::listen_on_loopback(SOMAXCONN, port);
  const int one = pair::connect_on_loopback(port);
  const int other = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  unsigned echoes = echo(one, other, 3000);
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  use_up_addresses();

  unsigned duplicates = 0;
  int last = other;
  for (int copy = 0; duplicates < wanted && (copy = dup(other)) >= 0; ++duplicates) last = copy;
  echoes += echo(one, last, 1000);
  unsigned members = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {}};
    if (set >= 0 && (epoll_ctl(set, EPOLL_CTL_ADD, one, &event) == 0 || errno == ENOMEM)) ++members;
    close(set);
  }
  unsigned more = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const int a = pair::connect_on_loopback(port);
    const int b = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (echo(a, b, 10) == 10) ++more;
    close(a);
    close(b);
  }
  close(other);  // the stream lives on under its other descriptors
  echoes += echo(one, last, 1000);
  for (int fd = other + 1; fd < last; ++fd) close(fd);
  echoes += echo(one, last, 1000);
  std::printf("{\"duplicates\": %u, \"echoes\": %u, \"more\": %u, \"members\": %u}\n", duplicates,
              echoes, more, members);
  return 0;
}

// dup2 and dup3 over the descriptor of a stream: a call that fails changes nothing, a call that
// succeeds ends the stream.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// Notes that bytes still come through in both directions, including bytes that were unread before.
void see_that_it_works(const Pair& pair) {
  give(pair.client(), "there");
  NOTE(take(pair.server(), 11));
  give(pair.server(), "back");
  NOTE(take(pair.client(), 4));
}

/// While this object lives, numbers from `first` on are above the process's limit.
class Limit {
 public:
  explicit Limit(int first) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{static_cast<rlim_t>(first), before_.rlim_max};
    SEE(setrlimit(RLIMIT_NOFILE, &low));
  }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// While this object lives, the process has no free descriptor.
class Exhaustion {
 public:
  Exhaustion() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{3000, before_.rlim_max};  // a limit that is soon reached
    setrlimit(RLIMIT_NOFILE, &low);
    for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY))
      fds_.push_back(fd);
  }
  ~Exhaustion() {
    for (const int fd : fds_) close(fd);
    setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  rlimit before_{};
  std::vector<int> fds_;
};

int closed_number() {
  const int fd = fcntl(0, F_DUPFD, 700);
  close(fd);
  return fd;
}

}  // namespace

CASE(replaced, a_dup_that_fails_leaves_its_target) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(dup3(1, pair.server(), 0x12345));
  SEE(dup3(1, pair.server(), O_NONBLOCK));
  SEE(dup3(pair.server(), pair.server(), O_CLOEXEC));
  SEE(dup2(-1, pair.server()));
  SEE(dup2(closed_number(), pair.server()));
  SEE(dup3(closed_number(), pair.server(), 0));
  SEE(dup3(closed_number(), pair.server(), 0x12345));
  SEE(syscall(SYS_dup3, 1, pair.server(), 0x12345));
  SEE(syscall(SYS_dup3, closed_number(), pair.server(), 0));
  see_that_it_works(pair);
}

CASE(replaced, a_dup_over_the_limit_leaves_its_target) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  const int high = fcntl(pair.server(), F_DUPFD, 700);
  pair.close_server();
  {
    const Limit limit(high);
    SEE(dup2(1, high));
    SEE(dup3(1, high, O_CLOEXEC));
    SEE(dup3(1, high, 0x12345));
    SEE(dup2(pair.client(), high));
  }
  give(pair.client(), "there");
  NOTE(take(high, 11));
  give(high, "back");
  NOTE(take(pair.client(), 4));
  SEE(close(high));
}

CASE(replaced, without_a_free_descriptor) {
  Pair first;
  Pair second;
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const int numbers[] = {first.client(), second.client()};
  forget(numbers[0]);
  forget(numbers[1]);
  {
    const Exhaustion exhaustion;
    SEE(dup(ends[0]));
    SEE(dup3(ends[1], numbers[0], 0x12345));
    SEE(dup2(ends[1], numbers[0]) == numbers[0]);
    SEE(dup3(ends[1], numbers[1], O_CLOEXEC) == numbers[1]);
    SEE(dup(ends[0]));
    // A number that the program gives back is the program's again.
    close(ends[0]);
    SEE(dup(ends[1]) == ends[0]);
  }
  await_end(first.server());
  NOTE(take(first.server(), 1));
  await_end(second.server());
  NOTE(take(second.server(), 1));
  SEE(write(numbers[0], "", 0));
  SEE(fcntl(numbers[0], F_GETFD));
  SEE(fcntl(numbers[1], F_GETFD));
  close(ends[0]);
  close(ends[1]);
}

CASE(replaced, without_a_free_descriptor_and_a_reader_inside) {
  Pair pair;
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const int number = pair.server();
  forget(number);
  char byte = 0;
  {
    const Exhaustion exhaustion;
    const Later replaces(15, [&] { dup2(ends[1], number); });
    const Later sends(60, [&] { (void)!send(pair.client(), "x", 1, MSG_NOSIGNAL); });
    SEE(recv(number, &byte, 1, 0));
  }
  NOTE(std::string(1, byte));
  SEE(write(number, "p", 1));
  SEE(read(ends[0], &byte, 1));
  await_end(pair.client());
  NOTE(take(pair.client(), 1));
  close(ends[0]);
  close(ends[1]);
}

CASE(replaced, by_another_descriptor_of_its_own) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  const int copy = dup(pair.server());
  SEE(dup2(copy, pair.server()) == pair.server());
  SEE(dup3(pair.server(), copy, O_CLOEXEC) == copy);
  see_that_it_works(pair);
  SEE(close(copy));
}

CASE(replaced, a_number_that_no_table_has_room_for) {
  // Above what the kernel allows by default. Where the limit can't be raised that far, the case
  // can't test anything, and says so.
  constexpr int kHigh = (1 << 20) + 7;
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit high{kHigh + 10, std::max<rlim_t>(before.rlim_max, kHigh + 10)};
  if (setrlimit(RLIMIT_NOFILE, &high) != 0) {
    std::fprintf(stderr, "not run: fs.nr_open has no room for descriptor %d\n", kHigh);
    NOTE("fs.nr_open is too low");
    return;
  }
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(dup2(pair.server(), kHigh) == kHigh);
  SEE(fcntl(pair.server(), F_DUPFD, kHigh + 1) == kHigh + 1);
  SEE(dup2(kHigh, kHigh + 2) == kHigh + 2);
  pair.close_server();
  NOTE(take(kHigh, 6));
  give(kHigh + 1, "back");
  NOTE(take(pair.client(), 4));
  give(pair.client(), "there");
  NOTE(take(kHigh + 2, 5));
  for (int fd = kHigh; fd <= kHigh + 2; ++fd) SEE(close(fd));
  await_end(pair.client());
  NOTE(take(pair.client(), 1));
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace conformance

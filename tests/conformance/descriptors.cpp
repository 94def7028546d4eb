// dup, close and shutdown: several descriptors of one socket, and threads in calls on it.
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// A way to make a second descriptor.
struct Duplicator {
  const char* name;
  int (*duplicate)(int fd);
};

int unused_number() {
  const int fd = fcntl(0, F_DUPFD, 500);
  close(fd);
  return fd;
}

const Duplicator kDuplicators[] = {
    {"dup", [](int fd) { return dup(fd); }},
    {"dup2", [](int fd) { return dup2(fd, unused_number()); }},
    {"dup3", [](int fd) { return dup3(fd, unused_number(), O_CLOEXEC); }},
    {"F_DUPFD", [](int fd) { return fcntl(fd, F_DUPFD, 400); }},
    {"F_DUPFD_CLOEXEC", [](int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 400); }},
};

struct Scenario {
  const char* name;
  void (*body)(const Duplicator& way);
};

const Scenario kScenarios[] = {
    {"both_are_the_same",
     [](const Duplicator& way) {
       Pair pair;
       const int copy = see("duplicates", [&] { return way.duplicate(pair.client()) >= 0; })
                            ? way.duplicate(pair.client())
                            : -1;
       give(copy, "one ");
       give(pair.client(), "two");
       NOTE(take(pair.server(), 7));
       give(pair.server(), "back");
       NOTE(take(copy, 2));
       NOTE(take(pair.client(), 2));
       close(copy);
     }},
    {"closing_one_ends_nothing",
     [](const Duplicator& way) {
       Pair pair;
       const int copy = way.duplicate(pair.client());
       pair.close_client();
       pollfd end{pair.server(), POLLIN | POLLRDHUP, 0};
       SEE(poll(&end, 1, 30));
       give(copy, "still");
       NOTE(take(pair.server(), 5));
       give(pair.server(), "here");
       NOTE(take(copy, 4));
       close(copy);
       await_end(pair.server());
       NOTE(take(pair.server(), 1));
     }},
    {"shutdown_concerns_both",
     [](const Duplicator& way) {
       Pair pair;
       const int copy = way.duplicate(pair.client());
       SEE(shutdown(copy, SHUT_WR));
       SEE(send(pair.client(), "x", 1, MSG_NOSIGNAL));
       await_end(pair.server());
       NOTE(take(pair.server(), 1));
       close(copy);
     }},
};

}  // namespace

CASES(descriptors) {
  for (const Duplicator& way : kDuplicators)
    for (const Scenario& scenario : kScenarios)
      add_case(std::string("descriptors.") + way.name + "." + scenario.name,
               [&way, &scenario] { scenario.body(way); });
}

CASE(descriptors, wrong_numbers) {
  Pair pair;
  SEE(dup(-1));
  SEE(dup2(pair.client(), -1));
  SEE(dup2(-1, pair.client()));
  SEE(dup3(pair.client(), pair.client(), 0));
  SEE(dup3(pair.client(), unused_number(), O_APPEND));
  SEE(dup2(pair.client(), pair.client()) == pair.client());
  SEE(fcntl(pair.client(), F_DUPFD, -1));
  SEE(close(-1));
  SEE(close_range(10, 5, 0));
  SEE(close_range(3000, 3001, 99));
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(descriptors, dup2_over_a_stream_ends_it) {
  Pair pair;
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const int number = pair.client();
  forget(number);
  SEE(dup2(ends[1], number) == number);
  await_end(pair.server());
  NOTE(take(pair.server(), 1));
  SEE(write(number, "p", 1));
  char byte;
  SEE(read(ends[0], &byte, 1));
  close(ends[0]);
  close(ends[1]);
}

CASE(descriptors, dup2_of_a_stream_over_another) {
  Pair first;
  Pair second;
  const int number = second.client();
  forget(number);
  SEE(dup2(first.client(), number) == number);
  await_end(second.server());
  give(number, "first");
  NOTE(take(first.server(), 5));
}

CASE(descriptors, pre_close_wakes_a_reader) {
  // The JDK closes like this: it puts a marker over the number, signals the thread, and then calls
  // close().
  Pair pair;
  int marker[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, marker) != 0) std::abort();
  shutdown(marker[0], SHUT_RDWR);
  const int number = pair.server();
  forget(number);
  {
    const Interruptions interruptions(false);
    const Later later(15, [&] { dup2(marker[0], number); });
    char byte;
    ssize_t result = 0;
    do result = recv(number, &byte, 1, 0);
    while (result < 0 && errno == EINTR);
    NOTE(result);
  }
  close(marker[0]);
  close(marker[1]);
}

CASE(descriptors, a_reader_outlives_the_descriptor) {
  // The thread in recv() keeps the socket alive.
  Pair pair;
  const int number = pair.server();
  forget(number);
  const Later closes(15, [&] { pair.close_server(); });
  const Later sends(40, [&] { (void)!send(pair.client(), "x", 1, MSG_NOSIGNAL); });
  char byte = 0;
  SEE(recv(number, &byte, 1, 0));
  NOTE(std::string(1, byte));
}

CASE(descriptors, close_range_ends_streams) {
  Pair pair;
  const int copy = fcntl(pair.client(), F_DUPFD, 600);
  pair.close_client();
  SEE(close_range(600, 700, 0));
  await_end(pair.server());
  NOTE(take(pair.server(), 1));
  SEE(fcntl(copy, F_GETFD, 0));
}

CASE(descriptors, close_range_of_all_numbers_is_cheap) {
  Pair pair;
  const int copy = fcntl(pair.client(), F_DUPFD, 800);
  pair.close_client();
  rusage before{};
  rusage after{};
  getrusage(RUSAGE_SELF, &before);
  SEE(close_range(800, ~0U, 0));
  getrusage(RUSAGE_SELF, &after);
  NOTE(after.ru_minflt - before.ru_minflt < 200);  // pages touched for the first time
  await_end(pair.server());
  NOTE(take(pair.server(), 1));
  SEE(fcntl(copy, F_GETFD, 0));
}

CASE(descriptors, close_range_for_exec_ends_nothing) {
  Pair pair;
  const int copy = fcntl(pair.client(), F_DUPFD, 600);
  SEE(close_range(600, 700, CLOSE_RANGE_CLOEXEC));
  NOTE((fcntl(copy, F_GETFD, 0) & FD_CLOEXEC) != 0);
  give(copy, "x");
  NOTE(take(pair.server(), 1));
  close(copy);
}

CASE(descriptors, numbers_are_reused) {
  int before = -1;
  bool same = true;
  for (int i = 0; i < 20; ++i) {
    Pair pair;
    same = same && (before < 0 || before == pair.client());
    before = pair.client();
    give(pair.client(), text(10, static_cast<size_t>(i)));
    if (take(pair.server(), 10) != text(10, static_cast<size_t>(i))) same = false;
  }
  NOTE(same);
}

CASE(descriptors, the_limit_is_the_programs) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  Pair pair;
  const int next = dup(pair.client());
  close(next);
  const rlimit small{static_cast<rlim_t>(next) + 1, limit.rlim_max};
  SEE(setrlimit(RLIMIT_NOFILE, &small));
  const int last = SEE_DONE(dup(pair.client())) == 0 ? next : -1;
  SEE(dup(pair.client()));
  close(last);
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
  SEE(setrlimit(RLIMIT_NOFILE, &limit));
}

CASE(descriptors, shutdown_of_what_is_none) {
  Pair pair;
  SEE(shutdown(pair.client(), 99));
  SEE(shutdown(-1, SHUT_RD));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  SEE(shutdown(fd, SHUT_RDWR));
  close(fd);
  SEE(shutdown(pair.client(), SHUT_WR));
  SEE(shutdown(pair.client(), SHUT_WR));
  SEE(shutdown(pair.client(), SHUT_RD));
  SEE(shutdown(pair.client(), SHUT_RD));
}

CASE(descriptors, a_standard_stream) {
  // stdio calls write() inside libc.
  Pair pair;
  give(pair.client(), "request ");
  NOTE(take(pair.server(), 8));
  give(pair.server(), "answer: ");
  fflush(stdout);
  const int before = dup(STDOUT_FILENO);
  SEE(dup2(pair.server(), STDOUT_FILENO));
  SEE(printf("%d lines\n", 3));
  SEE(fflush(stdout));
  SEE(dup2(before, STDOUT_FILENO));
  close(before);
  NOTE(take(pair.client(), 16));
  give(pair.server(), "more");
  NOTE(take(pair.client(), 4));
}

CASE(descriptors, a_file_on_a_stream) {
  Pair pair;
  const int copy = dup(pair.client());
  FILE* const file = fdopen(copy, "r+");
  SEE(fprintf(file, "line %d\n", 1));
  SEE(fflush(file));
  NOTE(take(pair.server(), 7));
  give(pair.server(), "answer\n");
  char line[32] = "";
  NOTE(fgets(line, sizeof line, file) != nullptr);
  NOTE(line);
  NOTE(fileno(file) == copy);
  SEE(fclose(file));
}

CASE(descriptors, dprintf_on_a_stream) {
  Pair pair;
  SEE(dprintf(pair.client(), "%s %d", "number", 7));
  NOTE(take(pair.server(), 8));
}

}  // namespace conformance

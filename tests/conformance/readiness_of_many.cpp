// What poll and select report for several descriptors at once.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/event_mask.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// A pipe, an event counter, two pairs of which one has bytes, and a closed descriptor.
struct Mixture {
  Mixture() {
    if (pipe(ends) != 0) std::abort();
    counter = eventfd(3, EFD_CLOEXEC);
    give(busy.client(), "x");
    await_bytes(busy.server(), 1);
    gone = dup(counter);
    close(gone);
  }
  ~Mixture() {
    for (const int fd : {ends[0], ends[1], counter}) close(fd);
  }
  Pair idle;
  Pair busy;
  int ends[2];
  int counter;
  int gone;
};

}  // namespace

CASE(readiness, poll_of_a_mixture) {
  Mixture mixture;
  pollfd fds[] = {{mixture.idle.server(), POLLIN, 0},
                  {-1, POLLIN, 99},
                  {mixture.busy.server(), POLLIN | POLLOUT, 0},
                  {mixture.ends[0], POLLIN, 0},
                  {mixture.ends[1], POLLOUT, 0},
                  {mixture.counter, POLLIN, 0},
                  {mixture.gone, POLLIN, 0},
                  {mixture.busy.server(), POLLOUT, 0}};
  SEE(poll(fds, 8, -1));
  for (const pollfd& fd : fds) NOTE(mask_text(static_cast<unsigned short>(fd.revents)));
  SEE(poll(fds, 1, 10));
  SEE(poll(fds, 2, 10));
  NOTE(mask_text(static_cast<unsigned short>(fds[1].revents)));
}

CASE(readiness, select_of_a_mixture) {
  Mixture mixture;
  fd_set in;
  fd_set out;
  const auto fill = [&] {
    FD_ZERO(&in);
    FD_ZERO(&out);
    for (const int fd :
         {mixture.idle.server(), mixture.busy.server(), mixture.ends[0], mixture.counter})
      FD_SET(fd, &in);
    for (const int fd : {mixture.busy.server(), mixture.ends[1]}) FD_SET(fd, &out);
  };
  fill();
  timeval time{5, 0};
  SEE(select(100, &in, &out, nullptr, &time));
  for (const int fd :
       {mixture.idle.server(), mixture.busy.server(), mixture.ends[0], mixture.counter})
    NOTE(FD_ISSET(fd, &in) != 0);
  for (const int fd : {mixture.busy.server(), mixture.ends[1]}) NOTE(FD_ISSET(fd, &out) != 0);
  NOTE(time.tv_sec >= 4);
  fill();
  FD_SET(mixture.gone, &in);
  SEE(select(100, &in, &out, nullptr, &time));
}

CASE(readiness, select_of_a_high_number) {
  Pair pair;
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  const int high = fcntl(pair.server(), F_DUPFD, 1500);
  std::vector<unsigned long> bits(2048 / (8 * sizeof(unsigned long)), 0);
  bits[1500 / 64] |= 1UL << (1500 % 64);
  NOTE(high);
  SEE(select(1501, reinterpret_cast<fd_set*>(bits.data()), nullptr, nullptr, nullptr));
  NOTE((bits[1500 / 64] >> (1500 % 64) & 1) != 0);
  close(high);
}

CASE(readiness, poll_of_more_than_the_limit) {
  Pair pair;
  give(pair.client(), "x");
  std::vector<pollfd> fds(300, pollfd{pair.server(), POLLIN, 0});
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{299, before.rlim_max};
  SEE(setrlimit(RLIMIT_NOFILE, &low));
  SEE(poll(fds.data(), 299, -1));
  SEE(poll(fds.data(), 300, -1));
  SEE(setrlimit(RLIMIT_NOFILE, &before));
}

// The call reports everything that was sent before it.
CASE(readiness, poll_of_all_that_was_sent) {
  const Pair pairs[3];
  int complete = 0;
  for (int round = 0; round < 100; ++round) {
    for (const Pair& pair : pairs) give(pair.client(), "x");
    pollfd fds[3];
    for (int i = 0; i < 3; ++i) fds[i] = {pairs[i].server(), POLLIN, 0};
    if (poll(fds, 3, -1) == 3) ++complete;
    for (const Pair& pair : pairs) take(pair.server(), 1);
  }
  NOTE(complete);
}

}  // namespace conformance

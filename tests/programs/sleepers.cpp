// Threads that sleep on one stream each, and the descriptors that this takes.
//
//   sleepers wait WAY THREADS [full]
//   sleepers server CONNECTIONS LIMIT
//   sleepers client PORT CONNECTIONS
//
// `wait`: each of THREADS threads waits for a byte of its stream by WAY: read, recv, timed (recv
// with SO_RCVTIMEO), poll, both (poll with a second descriptor), or epoll (each thread adds the
// stream to a set that it already has). With `full`, no descriptor is free any more. Prints how
// many threads got their byte, and how many descriptors the process has before the threads start,
// while they wait, when they have ended, and when the streams are closed; 0 if none is free for
// counting.
//
// `server`: echoes with one thread per connection, in a process that may have LIMIT descriptors.
// `client`: uses all its connections at the same time, three times over, and goes on until they are
// on the engine, if there is one.
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "preload/sidestep.h"
#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/warm.hpp"

namespace {

using pair::die;
using namespace std::chrono_literals;

void set_limit(rlim_t number) {
  const rlimit limit{number, number};
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");
}

/// Returns how many descriptors are open, without the one that it opens itself; 0 if none is free
/// for that.
int count_descriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = readdir(directory))
    if (entry->d_name[0] != '.') ++count;
  closedir(directory);
  return count - 1;
}

pthread_t start(void* (*entry)(void*), void* argument) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_t thread{};
  if (pthread_create(&thread, &attributes, entry, argument) != 0) die("pthread_create");
  pthread_attr_destroy(&attributes);
  return thread;
}

// ---- wait

struct Sleeper {
  int to = -1;    ///< the other end
  int from = -1;  ///< the end that is waited for
  int set = -1;   ///< an epoll set that does not have `from` yet
  bool got = false;
};
std::string_view g_way;
int g_pipe[2];

void* wait_for_byte(void* argument) {
  auto& own = *static_cast<Sleeper*>(argument);
  char byte = 0;
  if (g_way == "poll" || g_way == "both") {
    pollfd fds[] = {{own.from, POLLIN, 0}, {g_pipe[0], POLLIN, 0}};
    if (poll(fds, g_way == "both" ? 2 : 1, 60'000) < 1 || fds[0].revents == 0) return nullptr;
  } else if (g_way == "epoll") {
    epoll_event event{EPOLLIN, {}};
    if (epoll_ctl(own.set, EPOLL_CTL_ADD, own.from, &event) != 0 ||
        epoll_wait(own.set, &event, 1, 60'000) != 1)
      return nullptr;
  } else if (g_way == "timed") {
    const timeval limit{60, 0};
    setsockopt(own.from, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  const ssize_t size = g_way == "read" ? read(own.from, &byte, 1) : recv(own.from, &byte, 1, 0);
  own.got = size == 1 && byte == 'y';
  return nullptr;
}

int wait(size_t threads, bool full) {
  set_limit(6000);
  int port = 0;
  const int listener = pair::listen_on_loopback(64, port);
  if (pipe(g_pipe) != 0) die("pipe");
  std::vector<Sleeper> sleepers(threads);
  std::vector<std::pair<int, int>> ends;
  for (Sleeper& one : sleepers) {
    one.to = pair::connect_on_loopback(port);
    one.from = accept(listener, nullptr, nullptr);
    if (one.from < 0) die("accept");
    ends.emplace_back(one.to, one.from);
    if (g_way == "epoll") one.set = epoll_create1(EPOLL_CLOEXEC);
  }
  pair::warm(ends);
  // Reserves the program's own memory before the last descriptor is gone.
  std::vector<int> files;
  files.reserve(10'000);
  if (full)
    for (int fd = 0; (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) files.push_back(fd);
  const int before = count_descriptors();
  std::vector<pthread_t> ids;
  for (Sleeper& one : sleepers) ids.push_back(start(wait_for_byte, &one));
  std::this_thread::sleep_for(1s);  // by then the threads sleep
  const int meanwhile = count_descriptors();
  for (const Sleeper& one : sleepers)
    if (send(one.to, "y", 1, 0) != 1) die("send");
  size_t got = 0;
  for (size_t i = 0; i < threads; ++i) {
    pthread_join(ids[i], nullptr);
    if (sleepers[i].got) ++got;
  }
  // The engine checks whether the ended thread was the program's last, with one more descriptor.
  std::this_thread::sleep_for(100ms);
  const int after = count_descriptors();
  for (const int fd : files) close(fd);
  for (const Sleeper& one : sleepers) {
    close(one.to);
    close(one.from);
  }
  std::this_thread::sleep_for(300ms);  // lets the engine finish with the streams
  std::printf("{\"got\": %zu, \"before\": %d, \"meanwhile\": %d, \"after\": %d, \"left\": %d}\n",
              got, before, meanwhile, after, count_descriptors());
  return 0;
}

// ---- server and client

std::atomic<int> g_ended{0};

void* echo(void* argument) {
  const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(argument));
  char byte = 0;
  while (recv(fd, &byte, 1, 0) == 1)
    if (send(fd, &byte, 1, MSG_NOSIGNAL) != 1) break;
  ++g_ended;
  return nullptr;
}

int serve(int connections, rlim_t limit) {
  set_limit(limit);
  int port = 0;
  const int listener = pair::listen_on_loopback(256, port);
  std::printf("listening %d\n", port);
  std::fflush(stdout);
  int refused = 0;
  for (int accepted = 0; accepted < connections;) {
    const int fd = accept(listener, nullptr, nullptr);
    if (fd >= 0) {
      start(echo, reinterpret_cast<void*>(intptr_t{fd}));
      ++accepted;
    } else if (errno == EMFILE && refused < 100) {
      ++refused;
      std::this_thread::sleep_for(10ms);
    } else {
      die("accept");
    }
  }
  while (g_ended.load() < connections) std::this_thread::sleep_for(10ms);
  std::printf("{\"refused\": %d}\n", refused);
  return 0;
}

/// Sends a byte over each stream; returns how many come back.
int exchange(const std::vector<int>& fds) {
  for (const int fd : fds)
    if (send(fd, "c", 1, MSG_NOSIGNAL) != 1) die("send");
  int echoes = 0;
  for (const int fd : fds) {
    char byte = 0;
    if (recv(fd, &byte, 1, 0) == 1) ++echoes;
  }
  return echoes;
}

/// Exchanges bytes until all streams have left the kernel, if they can, or for some seconds at
/// most.
void exchange_until_up(const std::vector<int>& fds) {
  for (int i = 0; i < 500 && !std::all_of(fds.begin(), fds.end(), pair::is_up); ++i) {
    exchange(fds);
    std::this_thread::sleep_for(20ms);
  }
}

int request(int port, int connections) {
  std::vector<int> fds;
  for (int i = 0; i < connections; ++i) {
    fds.push_back(pair::connect_on_loopback(port));
    const timeval limit{20, 0};
    setsockopt(fds.back(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    // Lets the engine join the two processes while there is a descriptor left for that.
    if (i == 0) exchange_until_up(fds);
  }
  int echoes = 0;
  for (int round = 0; round < 3; ++round) {
    echoes += exchange(fds);
    std::this_thread::sleep_for(200ms);  // the server's threads sleep
  }
  exchange_until_up(fds);
  std::printf("{\"echoes\": %d}\n", echoes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 3 ? argv[1] : "";
  if (what == "wait") {
    g_way = argv[2];
    return wait(static_cast<size_t>(std::atoi(argv[3])), argc > 4);
  }
  if (what == "server") return serve(std::atoi(argv[2]), static_cast<rlim_t>(std::atoi(argv[3])));
  if (what == "client") return request(std::atoi(argv[2]), std::atoi(argv[3]));
  std::fputs(
      "sleepers wait WAY THREADS [full] | server CONNECTIONS LIMIT | client PORT CONNECTIONS\n",
      stderr);
  return 2;
}

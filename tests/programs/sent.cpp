// Checks read after write: what has been sent is there, in many threads at once.
//
//   sent WAY THREADS SECONDS [two|anew]
//
// Each thread has its own stream. It sends a byte at one end, and after send() has returned it
// looks for the byte at the other end, where it must be. With `two`, the other end is in another
// process, which a pipe tells when to look. With `anew`, each thread makes a new stream every 20
// milliseconds, so that some streams are about to move at any time. WAY:
//
//   recv     recv() with MSG_DONTWAIT
//   peek     the same with MSG_PEEK
//   queued   FIONREAD
//   poll     poll() with a timeout of 0; likewise select and epoll
//   timed    recv() with an SO_RCVTIMEO of 50 ms, even if the thread has no processor for longer
//
// Prints {"sends": ..., "missed": ..., "latest_us": ...}.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"

namespace {

using pair::die;
using Clock = std::chrono::steady_clock;

struct Count {
  unsigned long sends = 0;
  unsigned long missed = 0;
  long latest_us = 0;

  void add(const Count& other) {
    sends += other.sends;
    missed += other.missed;
    latest_us = std::max(latest_us, other.latest_us);
  }
};

/// One end of a stream.
class End {
 public:
  End(std::string_view way, int fd) : way_(way), fd_(fd) {
    const timeval limit{0, 50'000};
    if (way == "timed" && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
      die("setsockopt");
    if (way != "epoll") return;
    set_ = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN, {}};
    if (epoll_ctl(set_, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
  }

  void close_all() const {
    close(fd_);
    if (set_ >= 0) close(set_);
  }
  void send() const {
    const char byte = 's';
    if (::send(fd_, &byte, 1, 0) != 1) die("send");
  }
  /// Looks for the byte that has just been sent to this end, and takes it.
  void find(Count& count) const {
    ++count.sends;
    const auto start = Clock::now();
    if (!is_there()) {
      ++count.missed;
      while (!is_there()) {
      }
      const auto late = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
      count.latest_us = std::max(count.latest_us, long{late.count()});
    }
    if (way_ == "recv" || way_ == "timed") return;
    char byte = 0;
    if (recv(fd_, &byte, 1, 0) != 1) die("recv");
  }

 private:
  bool is_there() const {
    char byte = 0;
    if (way_ == "queued") {
      int queued = 0;
      return ioctl(fd_, FIONREAD, &queued) == 0 && queued == 1;
    }
    if (way_ == "poll") {
      pollfd one{fd_, POLLIN, 0};
      return poll(&one, 1, 0) == 1;
    }
    if (way_ == "select") {
      fd_set in;
      FD_ZERO(&in);
      FD_SET(fd_, &in);
      timeval now{};
      return select(fd_ + 1, &in, nullptr, nullptr, &now) == 1;
    }
    if (way_ == "epoll") {
      epoll_event event;
      return epoll_wait(set_, &event, 1, 0) == 1;
    }
    const int flags = way_ == "timed" ? 0 : MSG_DONTWAIT | (way_ == "peek" ? MSG_PEEK : 0);
    const ssize_t size = recv(fd_, &byte, 1, flags);
    if (size == 0 || (size < 0 && errno != EAGAIN)) die("recv");
    return size == 1;
  }

  const std::string_view way_;
  const int fd_;
  int set_ = -1;
};

struct Pipe {
  Pipe() {
    if (pipe(ends) != 0) die("pipe");
  }
  void tell() const {
    const char byte = 't';
    if (write(ends[1], &byte, 1) != 1) die("write");
  }
  bool hear() const {
    char byte = 0;
    return read(ends[0], &byte, 1) == 1;
  }
  int ends[2];
};

void in_one_process(const End& first, const End& second, Clock::time_point end, Count& count) {
  while (Clock::now() < end) {
    first.send();
    second.find(count);
    second.send();
    first.find(count);
  }
}

/// Uses new streams, one after another.
void anew(std::string_view way, int listening, int port, Clock::time_point end, Count& count) {
  static std::mutex one_at_a_time;
  while (Clock::now() < end) {
    std::unique_lock lock(one_at_a_time);
    const int mine = pair::connect_on_loopback(port);
    const int other = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    lock.unlock();
    const End first(way, mine);
    const End second(way, other);
    in_one_process(first, second, std::min(end, Clock::now() + std::chrono::milliseconds(20)),
                   count);
    first.close_all();
    second.close_all();
  }
}

/// Takes turns with the other process. The one that begins also ends the run.
void in_two(const End& mine, bool begins, const Pipe& out, const Pipe& in, Clock::time_point end,
            Count& count) {
  for (bool turn = begins; begins ? !turn || Clock::now() < end : true; turn = !turn) {
    if (turn) {
      mine.send();
      out.tell();
    } else {
      if (!in.hear()) return;
      mine.find(count);
    }
  }
}

template <typename Work>
Count count_in(size_t threads, Work work) {
  std::vector<Count> counts(threads);
  std::vector<std::thread> running;
  for (size_t i = 0; i < threads; ++i) running.emplace_back([&, i] { work(i, counts[i]); });
  for (std::thread& thread : running) thread.join();
  Count all;
  for (const Count& count : counts) all.add(count);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: sent WAY THREADS SECONDS [two|anew]\n");
    return 2;
  }
  const std::string_view way = argv[1];
  const size_t threads = std::strtoul(argv[2], nullptr, 10);
  const bool is_anew = argc > 4 && std::string_view(argv[4]) == "anew";
  const bool two = argc > 4 && !is_anew;
  int port = 0;
  const int listening = pair::listen_on_loopback(SOMAXCONN, port);
  const std::vector<Pipe> there(two ? threads : 0);
  const std::vector<Pipe> back(two ? threads : 0);
  Pipe results;
  const pid_t child = two ? fork() : -1;
  const bool begins = child != 0;
  if (two)
    for (size_t i = 0; i < threads; ++i) {
      // Closes the pipe ends that the other process uses: when one process ends, the other does.
      close(begins ? back[i].ends[1] : there[i].ends[1]);
      close(begins ? there[i].ends[0] : back[i].ends[0]);
    }
  std::vector<End> connecting;
  std::vector<End> accepted;
  for (size_t i = 0; i < threads && !is_anew; ++i) {
    if (!two || child != 0) connecting.emplace_back(way, pair::connect_on_loopback(port));
    if (!two || child == 0)
      accepted.emplace_back(way, accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
  }
  const Clock::time_point end = Clock::now() + std::chrono::seconds(std::atoi(argv[3]));
  Count all = count_in(threads, [&](size_t i, Count& count) {
    if (is_anew) {
      anew(way, listening, port, end, count);
    } else if (!two) {
      in_one_process(connecting[i], accepted[i], end, count);
    } else if (begins) {
      in_two(connecting[i], true, there[i], back[i], end, count);
      close(there[i].ends[1]);
    } else {
      in_two(accepted[i], false, back[i], there[i], end, count);
    }
  });
  if (child == 0) return write(results.ends[1], &all, sizeof all) == sizeof all ? 0 : 1;
  if (two) {
    Count other;
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0 ||
        read(results.ends[0], &other, sizeof other) != sizeof other)
      die("the other process");
    all.add(other);
  }
  std::printf("{\"sends\": %lu, \"missed\": %lu, \"latest_us\": %ld}\n", all.sends, all.missed,
              all.latest_us);
  return 0;
}

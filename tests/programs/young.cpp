// Streams that are used from their first moment and end soon, so that most of their life falls into
// the time in which they leave the kernel.
//
//   young WAY server                  prints "listening PORT"; serves until its input ends
//   young WAY client PORT SECONDS     prints {"streams": ...}
//
// Each stream carries a few questions of random size with pauses between them, each answered by its
// echo, and then an end of file each way. Nothing is sent twice, so nothing makes up for a lost
// wake-up. An end that waits for ten seconds says so and exits with 1. WAY is how both ends wait
// until they can read:
//
//   recv      the call that receives
//   timed     the same, with SO_RCVTIMEO
//   poll, select
//   level, edge, oneshot    epoll, in the thread that reads
//   told      a dedicated thread waits for all streams (EPOLLONESHOT) and tells the readers, which
//             arm the streams, as with Java's asynchronous channels
//   interest  the same, level triggered: the events are removed and requested again, as Tomcat does
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"

namespace {

using pair::die;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kLimit = 10s;
constexpr size_t kClients = 4;
constexpr size_t kLargest = 3000;

[[noreturn]] void give_up(const char* role, size_t stream, size_t round, size_t have) {
  std::printf("%s: waits for more in round %zu of stream %zu, has %zu bytes\n", role, round, stream,
              have);
  std::fflush(stdout);
  _exit(1);
}

/// Waits until a stream can be read. All threads share one object.
class Way {
 public:
  explicit Way(std::string name) : name_(std::move(name)) {
    if (name_ == "told" || name_ == "interest") std::thread([this] { tell(); }).detach();
  }

  bool reads_without_waiting() const { return name_ != "recv" && name_ != "timed"; }

  void begin(int fd) {
    const timeval limit{std::chrono::seconds(kLimit).count(), 0};
    if (name_ == "timed" && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
      die("setsockopt");
    if (name_ == "edge") control(own_set(), EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    if (name_ == "level") control(own_set(), EPOLL_CTL_ADD, fd, EPOLLIN);
    if (name_ == "oneshot") control(own_set(), EPOLL_CTL_ADD, fd, EPOLLONESHOT);
    if (name_ == "interest") control(set_, EPOLL_CTL_ADD, fd, 0);
  }

  /// Returns false if ten seconds have gone by.
  bool wait(int fd) {
    const int ms = static_cast<int>(std::chrono::milliseconds(kLimit).count());
    if (name_ == "poll") {
      pollfd one{fd, POLLIN, 0};
      return poll(&one, 1, ms) == 1;
    }
    if (name_ == "select") {
      fd_set in;
      FD_ZERO(&in);
      FD_SET(fd, &in);
      timeval limit{std::chrono::seconds(kLimit).count(), 0};
      return select(fd + 1, &in, nullptr, nullptr, &limit) == 1;
    }
    if (name_ == "told" || name_ == "interest") return wait_to_be_told(fd);
    if (name_ == "oneshot") control(own_set(), EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
    epoll_event event;
    return epoll_wait(own_set(), &event, 1, ms) == 1;
  }

 private:
  /// Returns the set of this thread, which has one stream at a time.
  static int own_set() {
    static thread_local const struct Set {
      ~Set() { close(fd); }
      int fd = epoll_create1(EPOLL_CLOEXEC);
    } set;
    return set.fd;
  }

  static void control(int set, int operation, int fd, uint32_t events) {
    epoll_event event{events, {}};
    event.data.fd = fd;
    if (epoll_ctl(set, operation, fd, &event) == 0) return;
    if (operation != EPOLL_CTL_MOD || errno != ENOENT) die("epoll_ctl");
    control(set, EPOLL_CTL_ADD, fd, events);
  }

  bool wait_to_be_told(int fd) {
    {
      const std::lock_guard guard(mutex_);
      told_.erase(fd);  // left by an earlier stream with this number
    }
    control(set_, EPOLL_CTL_MOD, fd, name_ == "told" ? EPOLLIN | EPOLLONESHOT : EPOLLIN);
    std::unique_lock guard(mutex_);
    return changed_.wait_for(guard, kLimit, [&] { return told_.erase(fd) != 0; });
  }

  void tell() {
    while (true) {
      std::array<epoll_event, 8> events;
      const int count = epoll_wait(set_, events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<size_t>(i)].data.fd;
        epoll_event nothing{0, {}};
        nothing.data.fd = fd;
        // May fail: a reader that was told earlier may have closed the stream.
        if (name_ == "interest") epoll_ctl(set_, EPOLL_CTL_MOD, fd, &nothing);
        const std::lock_guard guard(mutex_);
        told_.insert(fd);
        changed_.notify_all();
      }
    }
  }

  const std::string name_;
  const int set_ = epoll_create1(EPOLL_CLOEXEC);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> told_;
};

/// One end of a stream.
class End {
 public:
  End(Way& way, int fd, const char* role, size_t number)
      : way_(way), fd_(fd), role_(role), number_(number) {
    way_.begin(fd_);
  }
  ~End() { close(fd_); }
  End(const End&) = delete;

  void send_all(const uint8_t* data, size_t size) {
    while (size != 0) {
      const ssize_t sent = send(fd_, data, size, MSG_NOSIGNAL);
      if (sent <= 0) die("send");
      data += sent;
      size -= static_cast<size_t>(sent);
    }
  }

  /// Returns what there is, at least one byte, or 0 at the end of the stream.
  size_t receive(uint8_t* data, size_t size, size_t round, size_t have) {
    while (true) {
      const ssize_t got = recv(fd_, data, size, way_.reads_without_waiting() ? MSG_DONTWAIT : 0);
      if (got >= 0) return static_cast<size_t>(got);
      if (errno != EAGAIN) die("recv");
      if (!way_.reads_without_waiting() || !way_.wait(fd_)) give_up(role_, number_, round, have);
    }
  }

  void shut() {
    if (shutdown(fd_, SHUT_WR) != 0) die("shutdown");
  }

 private:
  Way& way_;
  const int fd_;
  const char* const role_;
  const size_t number_;
};

void echo(Way& way, int fd, size_t number) {
  End end(way, fd, "server", number);
  std::array<uint8_t, kLargest> data;
  for (size_t have = 0;;) {
    const size_t got = end.receive(data.data(), data.size(), 0, have);
    if (got == 0) return;
    have += got;
    end.send_all(data.data(), got);
  }
}

void serve(Way& way) {
  int port = 0;
  const int listener = pair::listen_on_loopback(100, port);
  std::printf("listening %d\n", port);
  std::fflush(stdout);
  std::thread([] {
    while (std::getchar() != EOF) {
    }
    std::exit(0);
  }).detach();
  for (size_t number = 0;; ++number) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) die("accept");
    std::thread([&way, fd, number] { echo(way, fd, number); }).detach();
  }
}

void ask(Way& way, int port, size_t number, std::minstd_rand& dice) {
  End end(way, pair::connect_on_loopback(port), "client", number);
  std::array<uint8_t, kLargest> data;
  std::array<uint8_t, kLargest> back;
  const size_t rounds = dice() % 8;
  for (size_t round = 0; round < rounds; ++round) {
    const size_t size = dice() % 4 == 0 ? 1 + dice() % kLargest : 64;
    for (uint8_t& byte : data) byte = static_cast<uint8_t>(dice());
    end.send_all(data.data(), size);
    for (size_t have = 0; have < size;) {
      const size_t got = end.receive(back.data() + have, size - have, round, have);
      if (got == 0) die("an end before the echo");
      have += got;
    }
    if (!std::equal(back.begin(), back.begin() + static_cast<std::ptrdiff_t>(size), data.begin()))
      die("another echo");
    if (dice() % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice() % 1500));
  }
  end.shut();
  if (end.receive(back.data(), back.size(), rounds, 0) != 0) die("more than the echo");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[2] : "";
  if (role != "server" && (role != "client" || argc < 5)) {
    std::fputs("usage: young WAY server|client [PORT SECONDS]\n", stderr);
    return 2;
  }
  static Way way(argv[1]);  // static because its thread never ends
  if (role == "server") serve(way);
  const int port = std::atoi(argv[3]);
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(argv[4]));
  std::atomic<size_t> streams{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kClients; ++i)
    threads.emplace_back([&, i] {
      std::minstd_rand dice(i + 1);
      while (Clock::now() < end) ask(way, port, ++streams, dice);
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("{\"streams\": %zu}\n", streams.load());
  std::fflush(stdout);
  _exit(0);  // skips the destructors of what the thread of `way` uses
}

// An echo over one stream that is read and written through libc but waited for in other ways.
//
//   unseen_waiter WAY server        prints "listening PORT"; serves one stream
//   unseen_waiter WAY client PORT   prints {"trips": ...}
//
// WAY says how this end adds its socket to an epoll set and waits for it there:
//
//   libc   epoll_ctl(), epoll_wait()
//   call   the same through syscall()
//   raw    the same by instructions that no library sees
//   ring   io_uring adds it, and epoll_wait() waits
//   late   as ring, after 100 round trips in which the end looked again and again without waiting
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/raw_call.hpp"

namespace {

using pair::die;
using pair::raw_call;

constexpr int kTrips = 300;
constexpr int kLimit = 10'000;  // milliseconds

/// A ring of which one entry is used once.
void add_by_ring(int set, int fd, epoll_event& event) {
  io_uring_params settings{};
  const int ring = static_cast<int>(syscall(SYS_io_uring_setup, 4, &settings));
  if (ring < 0) die("io_uring_setup");
  const auto map = [&](off_t what) {
    void* const at = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ring, what);
    if (at == MAP_FAILED) die("mmap");
    return static_cast<char*>(at);
  };
  char* const queue = map(IORING_OFF_SQ_RING);
  auto* const entry = reinterpret_cast<io_uring_sqe*>(map(IORING_OFF_SQES));
  entry->opcode = IORING_OP_EPOLL_CTL;
  entry->fd = set;
  entry->off = static_cast<uint64_t>(fd);
  entry->len = EPOLL_CTL_ADD;
  entry->addr = reinterpret_cast<uint64_t>(&event);
  *reinterpret_cast<unsigned*>(queue + settings.sq_off.array) = 0;
  *reinterpret_cast<unsigned*>(queue + settings.sq_off.tail) = 1;
  if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, nullptr, 0) != 1)
    die("io_uring_enter");
  close(ring);
}

class Waiter {
 public:
  Waiter(std::string way, int fd) : way_(std::move(way)), fd_(fd) {
    set_ = way_ == "raw"    ? static_cast<int>(raw_call(SYS_epoll_create1))
           : way_ == "call" ? static_cast<int>(syscall(SYS_epoll_create1, 0))
                            : epoll_create1(0);
    if (set_ < 0) die("epoll_create1");
    if (way_ != "late") add();
  }
  void add() {
    if (added_) return;
    added_ = true;
    epoll_event event{};
    event.events = EPOLLIN;
    if (way_ == "raw") {
      raw_call(SYS_epoll_ctl, set_, EPOLL_CTL_ADD, fd_, reinterpret_cast<long>(&event));
    } else if (way_ == "call") {
      syscall(SYS_epoll_ctl, set_, EPOLL_CTL_ADD, fd_, &event);
    } else if (way_ == "libc") {
      epoll_ctl(set_, EPOLL_CTL_ADD, fd_, &event);
    } else {
      add_by_ring(set_, fd_, event);
    }
  }
  void wait() {
    if (way_ == "late" && !added_) {
      usleep(200);
      return;
    }
    add();
    epoll_event event{};
    const long found =
        way_ == "raw"
            ? raw_call(SYS_epoll_pwait, set_, reinterpret_cast<long>(&event), 1, kLimit, 0)
        : way_ == "call" ? syscall(SYS_epoll_pwait, set_, &event, 1, kLimit, nullptr, 8)
                         : epoll_wait(set_, &event, 1, kLimit);
    if (found == 1) return;
    errno = ETIME;
    die("hangs");
  }

 private:
  const std::string way_;
  const int fd_;
  int set_ = -1;
  bool added_ = false;
};

/// Receives all `size` bytes, or fewer at the end of the stream.
size_t receive(Waiter& waiter, int fd, char* data, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = read(fd, data + done, size - done);
    if (got < 0 && errno != EAGAIN) die("read");
    if (got == 0) break;
    if (got < 0) {
      waiter.wait();
    } else {
      done += static_cast<size_t>(got);
    }
  }
  return done;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const std::string way = arguments[1];
  const bool serves = std::string(arguments[2]) == "server";
  int fd = -1;
  if (serves) {
    int port = 0;
    const int listener = pair::listen_on_loopback(1, port);
    std::printf("listening %d\n", port);
    std::fflush(stdout);
    fd = accept(listener, nullptr, nullptr);
  } else {
    fd = pair::connect_on_loopback(std::atoi(arguments[3]));
  }
  if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
  Waiter waiter(way, fd);
  std::array<char, 1000> data{};
  std::array<char, 1000> back{};
  int trips = 0;
  for (; serves || trips < kTrips; ++trips) {
    if (trips == kTrips / 3) waiter.add();
    if (!serves) {
      data.fill(static_cast<char>('a' + trips % 26));
      if (write(fd, data.data(), data.size()) != static_cast<ssize_t>(data.size())) die("write");
    }
    const size_t got = receive(waiter, fd, back.data(), back.size());
    if (serves && got == 0) break;
    if (got != back.size() || (!serves && back != data)) die("wrong bytes");
    if (serves && write(fd, back.data(), got) != static_cast<ssize_t>(got)) die("write");
    if (!serves) usleep(300);
  }
  std::printf("{\"trips\": %d}\n", trips);
  return 0;
}

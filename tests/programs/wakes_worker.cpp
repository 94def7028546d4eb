#include "tests/programs/wakes_worker.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/warm.hpp"

namespace wakes {
namespace {

using namespace std::chrono_literals;
using pair::die;

/// How a thread waits for its stream.
enum class Way { read, timed, poll, select, level, edge };
constexpr size_t kWays = 6;

/// The first message on a stream. The process that connected sends it.
struct Hello {
  uint32_t process;
  uint32_t stream;
  uint64_t life;
};

/// One end of a stream and the thread that serves it. If the thread is cancelled, another one takes
/// its place and goes on with the token that `next` says is expected.
struct Lane {
  Lane(const Worker& own, size_t peer, size_t number)
      : worker(&own),
        other(peer),
        stream(number),
        way(static_cast<Way>((number + own.own) % kWays)) {
    if (way == Way::level || way == Way::edge) set = epoll_create1(EPOLL_CLOEXEC);
  }

  const Worker* worker;
  size_t other;
  size_t stream;
  Way way;
  pthread_t thread{};
  std::atomic<int> fd{-1};
  int set = -1;
  uint64_t next = 0;
  uint64_t life = 0;  ///< the other process's, when the stream was made
  std::mutex lock;    ///< protects the two below; held while `fd` is closed
  int pending = -1;   ///< accepted but not yet taken
  uint64_t pending_life = 0;

  Board& board() const { return *worker->board; }
  bool connects() const { return worker->own > other; }
};

class CancelsHere {
 public:
  CancelsHere() { pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr); }
  ~CancelsHere() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr); }
};

/// Waits until something may have arrived. Threads are cancelled only here, where nothing is lost.
void wait_for(const Lane& lane) {
  const CancelsHere here;
  const int fd = lane.fd;
  pollfd one{fd, POLLIN, 0};
  epoll_event event;
  fd_set readable;
  switch (lane.way) {
    case Way::read:
    case Way::timed:
      break;  // take() waits in recv()
    case Way::poll:
      poll(&one, 1, -1);
      break;
    case Way::select:
      FD_ZERO(&readable);
      FD_SET(fd, &readable);
      select(fd + 1, &readable, nullptr, nullptr, nullptr);
      break;
    case Way::level:
    case Way::edge:
      epoll_wait(lane.set, &event, 1, -1);
      break;
  }
}

/// Takes one token. Returns false if the stream has ended or is broken.
bool take(Lane& lane, uint64_t& token) {
  const bool blocks = lane.way == Way::read || lane.way == Way::timed;
  for (;;) {
    const ssize_t got = recv(lane.fd, &token, sizeof token, blocks ? 0 : MSG_DONTWAIT);
    if (got == sizeof token) return true;
    if (got >= 0 || (errno != EAGAIN && errno != EINTR)) return false;
    if (errno == EAGAIN && !blocks) wait_for(lane);
  }
}

void pass_on(const Lane& lane, uint64_t token) {
  while (send(lane.fd, &token, sizeof token, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void use(Lane& lane) {
  uint64_t token = 0;
  while (take(lane, token)) {
    if (token != lane.next) ++lane.board().wrong;
    lane.next = token + 2;
    ++lane.board().hops[lane.worker->own][lane.other][lane.stream];
    pass_on(lane, token + 1);
  }
  const uint64_t life = lane.board().life[lane.other];
  if (life == lane.life && life % 2 == 0 && !lane.board().over) ++lane.board().wrong;
}

/// Connects, and sends the first token. Returns false if the run is over.
bool connect_to(Lane& lane) {
  const sockaddr_in server = pair::loopback(lane.worker->ports[lane.other]);
  while (!lane.board().over) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    lane.life = lane.board().life[lane.other];
    const Hello hello{static_cast<uint32_t>(lane.worker->own), static_cast<uint32_t>(lane.stream),
                      lane.board().life[lane.worker->own]};
    if (connect(fd, reinterpret_cast<const sockaddr*>(&server), sizeof server) == 0 &&
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
      lane.next = 2;
      lane.fd = fd;
      pass_on(lane, 1);
      return true;
    }
    close(fd);
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

bool take_accepted(Lane& lane) {
  while (!lane.board().over) {
    {
      const std::lock_guard guard(lane.lock);
      if (lane.pending >= 0) {
        lane.fd = std::exchange(lane.pending, -1);
        lane.life = lane.pending_life;
        lane.next = 1;
        return true;
      }
    }
    std::this_thread::sleep_for(2ms);
  }
  return false;
}

void prepare(Lane& lane) {
  if (lane.way == Way::timed) {
    const timeval limit{0, 1000 + static_cast<suseconds_t>(1000 * lane.stream)};
    setsockopt(lane.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  if (lane.set < 0) return;
  epoll_event event{lane.way == Way::edge ? EPOLLIN | EPOLLET : EPOLLIN, {}};
  if (epoll_ctl(lane.set, EPOLL_CTL_ADD, lane.fd, &event) != 0) die("epoll_ctl");
}

void end(Lane& lane) {
  const std::lock_guard guard(lane.lock);
  close(lane.fd.exchange(-1));
}

void* run(void* argument) {
  auto& lane = *static_cast<Lane*>(argument);
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
  for (;;) {
    if (lane.fd < 0) {  // otherwise a cancelled thread left it
      if (!(lane.connects() ? connect_to(lane) : take_accepted(lane))) return nullptr;
      prepare(lane);
      // The main thread, which ends all streams, may not have seen this one yet.
      if (lane.board().over) shutdown(lane.fd, SHUT_RDWR);
    }
    use(lane);
    end(lane);
  }
}

using Lanes = std::vector<std::unique_ptr<Lane>>;

bool receive(int fd, Hello& hello) {
  size_t filled = 0;
  while (filled < sizeof hello) {
    const ssize_t got =
        recv(fd, reinterpret_cast<char*>(&hello) + filled, sizeof hello - filled, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return true;
}

void accept_all(int listener, const Worker& worker, const Lanes& lanes) {
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0 && worker.board->over) return;
    if (fd < 0) continue;
    Hello hello{};
    if (!receive(fd, hello)) {
      close(fd);
      continue;
    }
    for (const auto& lane : lanes) {
      if (lane->other != hello.process || lane->stream != hello.stream) continue;
      const std::lock_guard guard(lane->lock);
      if (lane->pending >= 0) close(lane->pending);  // from a killed process
      lane->pending = fd;
      lane->pending_life = hello.life;
    }
  }
}

/// True if the thread does not wait in recv(), which may have taken the token already.
bool may_be_cancelled(const Lane& lane) {
  return lane.way != Way::read && lane.way != Way::timed;
}

size_t count_up(const Lanes& lanes) {
  return static_cast<size_t>(std::count_if(lanes.begin(), lanes.end(), [](const auto& lane) {
    const std::lock_guard guard(lane->lock);
    return lane->fd >= 0 && pair::is_up(lane->fd);
  }));
}

void start(Lane& lane) {
  if (pthread_create(&lane.thread, nullptr, run, &lane) != 0) die("pthread_create");
}

void cancel(Lane& lane) {
  pthread_cancel(lane.thread);
  void* result = nullptr;
  pthread_join(lane.thread, &result);
  if (result == PTHREAD_CANCELED) ++lane.board().cancelled;
  start(lane);
}

void on_signal(int /*number*/) {}

}  // namespace

int work(const Worker& worker) {
  struct sigaction action {};
  action.sa_handler = on_signal;  // interrupts blocking calls
  sigaction(SIGUSR1, &action, nullptr);
  worker.board->ready[worker.own] = true;

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  const sockaddr_in address = pair::loopback(worker.ports[worker.own]);
  if (setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, 64) != 0)
    die("listen");

  Lanes lanes;
  for (size_t other = 0; other < worker.processes; ++other) {
    for (size_t i = 0; i < worker.streams && other != worker.own; ++i) {
      start(*lanes.emplace_back(std::make_unique<Lane>(worker, other, i)));
    }
  }
  std::thread acceptor(accept_all, listener, std::cref(worker), std::cref(lanes));
  for (size_t turn = 0; !worker.board->over; ++turn) {
    std::this_thread::sleep_for(5ms);
    worker.board->up[worker.own] = count_up(lanes);
    if (Lane& lane = *lanes[turn * 7 % lanes.size()]; may_be_cancelled(lane)) cancel(lane);
  }
  shutdown(listener, SHUT_RDWR);
  acceptor.join();
  for (const auto& lane : lanes) {
    {
      const std::lock_guard guard(lane->lock);
      for (const int fd : {lane->fd.load(), lane->pending})
        if (fd >= 0) shutdown(fd, SHUT_RDWR);
    }
    pthread_join(lane->thread, nullptr);
  }
  return 0;
}

}  // namespace wakes

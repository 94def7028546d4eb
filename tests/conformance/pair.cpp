#include "tests/conformance/pair.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <vector>

#include "preload/sidestep.h"
#include "tests/conformance/cases.hpp"
#include "tests/conformance/transcript.hpp"

// Present under LD_PRELOAD only.
#pragma weak sidestep_carriers
#pragma weak sidestep_switch

namespace conformance {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Throws if a call failed: a failure of the machine, not of what is tested.
int checked(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return result;
}

/// Starts a thread that gets none of the signals that a case is about.
std::thread start_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

/// Moves the registered descriptors at random: at every step, and by a thread for calls that block.
class Switcher {
 public:
  static Switcher& instance() {
    static Switcher one;
    return one;
  }

  void add(int fd) {
    const std::lock_guard guard(lock_);
    fds_.push_back(fd);
    if (!thread_.joinable()) thread_ = start_thread([this] { run(); });
  }
  /// When it has returned, no move of `fd` is under way in this class.
  void remove(int fd) {
    const std::lock_guard guard(lock_);
    std::erase(fds_, fd);
  }
  pid_t fork_quietly() {
    const std::lock_guard random(random_lock_);
    const std::lock_guard guard(lock_);
    return fork();
  }
  void one_step() {
    switch (random(4)) {
      case 0:
        return;
      case 1:
        std::this_thread::sleep_for(std::chrono::microseconds(random(300)));
        return;
      default:
        move_one();
    }
  }

 private:
  ~Switcher() {
    stop_.store(true, std::memory_order_relaxed);
    if (thread_.joinable()) thread_.join();
  }
  unsigned random(unsigned below) {
    const std::lock_guard guard(random_lock_);
    return std::uniform_int_distribution<unsigned>(0, below - 1)(generator_);
  }
  void move_one() {
    const unsigned number = random(1U << 30);
    const std::lock_guard guard(lock_);
    if (!fds_.empty()) sidestep_switch(fds_[number % fds_.size()]);
  }
  void run() {
    while (!stop_.load(std::memory_order_relaxed)) {
      move_one();
      std::this_thread::sleep_for(std::chrono::microseconds(100 + random(700)));
    }
  }

  std::mutex lock_;
  std::mutex random_lock_;
  std::vector<int> fds_;
  std::mt19937 generator_{1};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

bool eventually(const std::function<bool()>& holds) {
  const auto limit = Clock::now() + 20s;
  while (!holds()) {
    if (Clock::now() > limit) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

std::atomic<int> g_pipe_signals{0};
struct sigaction g_before_pipe_signals;
struct sigaction g_before_interruptions;

}  // namespace

void before_step() {
  if (mode() == Mode::switching) Switcher::instance().one_step();
}

int listen_loopback(sockaddr_storage& address, socklen_t& length, int family) {
  const int listener = checked(socket(family != 0 ? family : AF_INET, SOCK_STREAM, 0), "socket");
  address = {};
  address.ss_family = static_cast<sa_family_t>(family != 0 ? family : AF_INET);
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    length = sizeof(sockaddr_in);
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    length = sizeof(sockaddr_in6);
  }
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listener, generic, length), "bind");
  checked(listen(listener, 16), "listen");
  checked(getsockname(listener, generic, &length), "getsockname");
  return listener;
}

static bool are_up(int fd, int other) {
  if (sidestep_carriers == nullptr) throw std::runtime_error("Sidestep is not there");
  // Asks both ends: streams that nobody has used yet leave the kernel because they are asked.
  const int carriers[] = {sidestep_carriers(fd), sidestep_carriers(other)};
  return std::all_of(std::begin(carriers), std::end(carriers),
                     [](int end) { return end >= 0 && (end & SIDESTEP_SENDS_BY_ENGINE) != 0; });
}

static void check_up(bool up, int fd, int other) {
  const auto carriers = [](int end) { return std::to_string(sidestep_carriers(end)); };
  if (!up)
    throw std::runtime_error("the pair has not left the kernel: " + carriers(fd) + ", " +
                             carriers(other));
}

void settle(int fd, int other) {
  if (mode() == Mode::kernel) return;
  check_up(eventually([&] { return are_up(fd, other); }), fd, other);
  if (mode() != Mode::switching) return;
  Switcher::instance().add(fd);
  Switcher::instance().add(other);
}

void forget(int fd) {
  if (mode() == Mode::switching) Switcher::instance().remove(fd);
}

Pair::Pair(bool nonblocking) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  client_ = checked(socket(AF_INET, SOCK_STREAM, 0), "socket");
  checked(connect(client_, reinterpret_cast<sockaddr*>(&address), length), "connect");
  server_ = checked(accept(listener, nullptr, nullptr), "accept");
  close(listener);
  settle(client_, server_);
  if (nonblocking) {
    set_nonblocking(client_);
    set_nonblocking(server_);
  }
}

Pair::~Pair() {
  close_client();
  close_server();
}

void Pair::close_client() {
  if (client_ < 0) return;
  forget(client_);
  close(client_);
  client_ = -1;
}

void Pair::close_server() {
  if (server_ < 0) return;
  forget(server_);
  close(server_);
  server_ = -1;
}

void Pair::reset_server() {
  const linger now{1, 0};
  checked(setsockopt(server_, SOL_SOCKET, SO_LINGER, &now, sizeof now), "SO_LINGER");
  close_server();
}

pid_t fork_quietly() {
  return mode() == Mode::switching ? Switcher::instance().fork_quietly() : fork();
}

void set_nonblocking(int fd, bool on) {
  const int flags = checked(fcntl(fd, F_GETFL, 0), "F_GETFL");
  checked(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), "F_SETFL");
}

static void set_timeout(int fd, int option, int milliseconds) {
  const timeval time{milliseconds / 1000, milliseconds % 1000 * 1000};
  checked(setsockopt(fd, SOL_SOCKET, option, &time, sizeof time), "a timeout");
}
void set_receive_timeout(int fd, int milliseconds) {
  set_timeout(fd, SO_RCVTIMEO, milliseconds);
}
void set_send_timeout(int fd, int milliseconds) {
  set_timeout(fd, SO_SNDTIMEO, milliseconds);
}

std::string text(size_t length, size_t offset) {
  std::string result(length, 0);
  for (size_t i = 0; i < length; ++i)
    result[i] = static_cast<char>('a' + (offset + i + (offset + i) / 26 / 7) % 26);
  return result;
}

void give(int fd, const std::string& data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t sent = send(fd, data.data() + done, data.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, 1000);
      continue;
    }
    checked(static_cast<int>(sent), "send");
    done += static_cast<size_t>(sent);
  }
}

void await_bytes(int fd, size_t length) {
  const bool there = eventually([&] {
    int queued = 0;
    return ioctl(fd, FIONREAD, &queued) == 0 && static_cast<size_t>(queued) >= length;
  });
  if (!there) throw std::runtime_error("the bytes do not arrive");
}

void await_end(int fd) {
  const bool there = eventually([&] {
    pollfd end{fd, POLLRDHUP, 0};
    return poll(&end, 1, 0) == 1 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  });
  if (!there) throw std::runtime_error("the end does not arrive");
}

void move_down(int fd) {
  if (mode() == Mode::switching && sidestep_switch != nullptr) sidestep_switch(fd);
}

void calm(const Pair& pair) {
  forget(pair.client());
  forget(pair.server());
  if (mode() != Mode::switching) return;
  // A direction comes up again when the bytes that it carried before have been read.
  check_up(eventually([&] {
             give(pair.client(), ".");
             give(pair.server(), ".");
             return take(pair.client(), 1) == take(pair.server(), 1) &&
                    are_up(pair.client(), pair.server());
           }),
           pair.client(), pair.server());
}

size_t fill(const Pair& pair) {
  forget(pair.client());
  forget(pair.server());
  // Returning credit, or the end of a move, may take a moment.
  const int settled = mode() == Mode::switching ? 300 : 90;
  const std::string piece = text(10'000);
  size_t total = 0;
  // The kernel reports room only when there is a lot of it, so the wait alone proves nothing.
  for (int in_vain = 0; in_vain < 3;) {
    const ssize_t sent =
        send(pair.client(), piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      total += static_cast<size_t>(sent);
      in_vain = 0;
      continue;
    }
    pollfd room{pair.client(), POLLOUT, 0};
    if (poll(&room, 1, settled / 3) == 0) ++in_vain;
  }
  return total;
}

std::string take(int fd, size_t length) {
  std::string data;
  std::vector<char> buffer(64 * 1024);
  while (data.size() < length) {
    const ssize_t got = recv(fd, buffer.data(), std::min(buffer.size(), length - data.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      pollfd there{fd, POLLIN, 0};
      if (poll(&there, 1, 5000) == 0) break;
      continue;
    }
    if (got <= 0) break;
    data.append(buffer.data(), static_cast<size_t>(got));
  }
  return data;
}

std::string digest(const std::string& data) {
  uint64_t sum = 14695981039346656037U;  // FNV-1a
  for (const char byte : data) sum = (sum ^ static_cast<unsigned char>(byte)) * 1099511628211U;
  return std::to_string(data.size()) + " bytes, " + std::to_string(sum);
}

Neighbour::Neighbour()
    : thread_(start_thread([this] {
        char byte = 0;
        (void)!recv(pair_.server(), &byte, 1, 0);
      })) {
  std::this_thread::sleep_for(2ms);  // by then the thread usually sleeps
}

Neighbour::~Neighbour() {
  give(pair_.client(), "x");
  thread_.join();
}

Later::Later(int milliseconds, std::function<void()> body)
    : thread_(start_thread([milliseconds, body = std::move(body)] {
        std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
        body();
      })) {}

Later::~Later() {
  thread_.join();
}

Interruptions::Interruptions(bool restart) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = restart ? SA_RESTART : 0;
  sigaction(SIGUSR1, &action, &g_before_interruptions);
  thread_ = start_thread([this, target = pthread_self()] {
    while (!stop_.load(std::memory_order_relaxed)) {
      std::this_thread::sleep_for(10ms);
      pthread_kill(target, SIGUSR1);
    }
  });
}

Interruptions::~Interruptions() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
  sigaction(SIGUSR1, &g_before_interruptions, nullptr);
}

PipeSignals::PipeSignals() {
  g_pipe_signals = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { ++g_pipe_signals; };
  sigaction(SIGPIPE, &action, &g_before_pipe_signals);
}

PipeSignals::~PipeSignals() {
  sigaction(SIGPIPE, &g_before_pipe_signals, nullptr);
}

int PipeSignals::count() const {
  return g_pipe_signals;
}

}  // namespace conformance

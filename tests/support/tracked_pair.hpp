#pragma once
/// A TCP connection over the loopback interface with both ends in this process, tracked in the way
/// the shim tracks the sockets of connect() and accept().
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "preload/fd_table.hpp"
#include "preload/tracking.hpp"

namespace sidestep::tests {

/// Lets the streams of tests leave the kernel at once. Set before anything reads the configuration.
inline const int g_streams_are_asked_for_at_once = setenv("SIDESTEP_ASK_AFTER", "0", 0);

/// Reports a failure of the machine, not of the code under test, and aborts.
[[noreturn]] inline void give_up(const char* what) noexcept {
  std::perror(what);
  std::abort();
}

/// Returns {connecting end, accepted end}.
inline std::array<int, 2> connect_loopback() {
  // libFuzzer's timer would interrupt connect(), which can't be called again after that
  // (connect(2), EINTR).
  sigset_t every, before;
  sigfillset(&every);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0)
    give_up("listening on the loopback interface");
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (client < 0 || connect(client, generic, length) != 0) give_up("connect");
  const int server = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (server < 0) give_up("accept");
  close(listener);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {client, server};
}

inline void close_tracked(int fd) noexcept {
  if (preload::Socket* socket = preload::FdTable::take(fd)) socket->remove_fd(fd);
  close(fd);
}

/// Both ends, which the destructor closes unless close_end() has done so.
class TrackedPair {
 public:
  explicit TrackedPair(bool nonblocking = false) : fds_(connect_loopback()) {
    preload::track(fds_[0], false, nonblocking, nullptr);
    preload::track(fds_[1], true, nonblocking, nullptr);
    for (const int fd : fds_)
      if (preload::FdTable::peek(fd) == nullptr) give_up("tracking a loopback socket");
  }
  ~TrackedPair() {
    close_end(0);
    close_end(1);
  }
  TrackedPair(const TrackedPair&) = delete;

  int fd(size_t end) const noexcept { return fds_[end]; }
  preload::Socket& socket(size_t end) const noexcept { return *preload::FdTable::peek(fds_[end]); }
  engine::Stream& stream(size_t end) const noexcept { return socket(end).stream(); }
  void close_end(size_t end) noexcept {
    if (fds_[end] >= 0) close_tracked(fds_[end]);
    fds_[end] = -1;
  }

 private:
  std::array<int, 2> fds_;
};

}  // namespace sidestep::tests

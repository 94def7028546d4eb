#pragma once
/// TCP connections over the loopback interface, both ends in this process, as the mode wants them.
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace conformance {

/// A connected pair. Blocking unless asked for otherwise. Closes what is still open.
class Pair {
 public:
  explicit Pair(bool nonblocking = false);
  ~Pair();
  Pair(const Pair&) = delete;

  int client() const { return client_; }
  int server() const { return server_; }
  void close_client();
  void close_server();
  /// As close(), but with a reset.
  void reset_server();

 private:
  int client_ = -1;
  int server_ = -1;
};

/// A listening socket on the loopback interface; its address.
int listen_loopback(sockaddr_storage& address, socklen_t& length, int family = 0);
/// Waits until `fd` (and `other`) are where the mode wants them; registers them for switching.
void settle(int fd, int other);
/// Before they are closed.
void forget(int fd);
/// In the switching mode the engine asks both ends to go to the kernel, until what is there has
/// been read.
void move_down(int fd);
/// The pair moves no more, and is where it was in the beginning. There are no unread bytes before.
void calm(const Pair& pair);

void set_nonblocking(int fd, bool on = true);
void set_receive_timeout(int fd, int milliseconds);
void set_send_timeout(int fd, int milliseconds);

/// Bytes that can be told apart: "abcdef...".
std::string text(size_t length, size_t offset = 0);
/// Sends all of it. Not part of the transcript.
void give(int fd, const std::string& data);
/// Waits until `length` bytes can be read at `fd` without blocking.
void await_bytes(int fd, size_t length);
/// Waits until the end, or the reset, has arrived at `fd`.
void await_end(int fd);
/// Sends from client to server until there is no room, and how much that was. The carriers stay
/// where they are from then on: another one may have room.
size_t fill(const Pair& pair);
/// Reads until the end or an error, or until `length` are there.
std::string take(int fd, size_t length);
/// A sum that depends on the order.
std::string digest(const std::string& data);

/// fork() between two moves of carriers: nobody holds a lock of the suite in the child.
pid_t fork_quietly();

/// Runs `body` in a thread of its own after some milliseconds; joined at the end of the scope.
class Later {
 public:
  Later(int milliseconds, std::function<void()> body);
  ~Later();

 private:
  std::thread thread_;
};

/// While it lives, another thread sleeps on a stream of its own. It waits for the doorbells for all
/// of the process, and others sleep in another way than they would alone.
class Neighbour {
 public:
  Neighbour();
  ~Neighbour();

 private:
  Pair pair_;
  std::thread thread_;
};

/// While it lives, the thread that made it gets a signal every few milliseconds.
class Interruptions {
 public:
  explicit Interruptions(bool restart);
  ~Interruptions();

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Counts SIGPIPE while it lives.
class PipeSignals {
 public:
  PipeSignals();
  ~PipeSignals();
  int count() const;
};

}  // namespace conformance

#pragma once
/// TCP connections over the loopback interface with both ends in this process, set up as the mode
/// requires.
#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>

namespace conformance {

/// A connected pair, blocking by default. The destructor closes the ends that are still open.
class Pair {
 public:
  explicit Pair(bool nonblocking = false);
  ~Pair();
  Pair(const Pair&) = delete;

  int client() const { return client_; }
  int server() const { return server_; }
  void close_client();
  void close_server();
  /// Closes the server's end with a reset.
  void reset_server();

 private:
  int client_ = -1;
  int server_ = -1;
};

/// Returns a listening socket on the loopback interface, and its address.
int listen_loopback(sockaddr_storage& address, socklen_t& length, int family = 0);
/// Waits until `fd` and `other` are on the carriers that the mode requires; registers them for
/// switching.
void settle(int fd, int other);
/// Stops switching `fd`. Must be called before `fd` is closed.
void forget(int fd);
/// In the switching mode, the engine asks both ends to move to the kernel until the bytes there
/// have been read.
void move_down(int fd);
/// Stops switching the pair and waits until it is back on its initial carriers. The pair must not
/// have unread bytes.
void calm(const Pair& pair);

void set_nonblocking(int fd, bool on = true);
void set_receive_timeout(int fd, int milliseconds);
void set_send_timeout(int fd, int milliseconds);

/// Returns bytes that can be told apart: "abcdef...".
std::string text(size_t length, size_t offset = 0);
/// Sends all of `data`. Adds nothing to the transcript.
void give(int fd, const std::string& data);
/// Waits until `length` bytes can be read at `fd` without blocking.
void await_bytes(int fd, size_t length);
/// Waits until the end of the stream, or a reset, has arrived at `fd`.
void await_end(int fd);
/// Sends from the client to the server until there is no room; returns how many bytes that took.
/// The carriers no longer change afterwards, because another carrier might have room.
size_t fill(const Pair& pair);
/// Reads until the end of the stream, an error, or `length` bytes.
std::string take(int fd, size_t length);
/// Returns the length and a checksum that depends on the order of the bytes.
std::string digest(const std::string& data);

/// Calls fork() between two carrier changes, so that no lock of the suite is held in the child.
pid_t fork_quietly();

/// Runs `body` in its own thread after `milliseconds`. The destructor joins the thread.
class Later {
 public:
  Later(int milliseconds, std::function<void()> body);
  ~Later();

 private:
  std::thread thread_;
};

/// While this object lives, another thread sleeps on a stream of its own. That thread waits for the
/// doorbells on behalf of the whole process, so other threads sleep differently than they would
/// alone.
class Neighbour {
 public:
  Neighbour();
  ~Neighbour();

 private:
  Pair pair_;
  std::thread thread_;
};

/// While this object lives, the thread that created it gets a signal every few milliseconds.
class Interruptions {
 public:
  explicit Interruptions(bool restart);
  ~Interruptions();

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

/// Counts SIGPIPE signals while this object lives.
class PipeSignals {
 public:
  PipeSignals();
  ~PipeSignals();
  int count() const;
};

}  // namespace conformance

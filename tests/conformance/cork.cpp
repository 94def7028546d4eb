// TCP_CORK and MSG_MORE: which bytes are held back, and what releases them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

void set(int fd, int name, int value) {
  SEE(setsockopt(fd, IPPROTO_TCP, name, &value, sizeof value));
}

bool readable(int fd, int milliseconds) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, milliseconds) == 1;
}

/// Tells whether bytes that have just been sent arrive before the time for which they are held. If
/// this thread was not running meanwhile, nobody can tell.
class Early {
 public:
  bool arrive(int fd, int milliseconds) const {
    const bool there = readable(fd, milliseconds);
    return there && std::chrono::steady_clock::now() - start_ < std::chrono::milliseconds(150);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

CASE(cork, holds_until_it_is_out) {
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    set(pair.client(), TCP_CORK, 1);
    const Early early;
    SEE(send(pair.client(), "head ", 5, 0));
    SEE(write(pair.client(), "and ", 4));
    NOTE(early.arrive(pair.server(), 30));
    set(pair.client(), TCP_CORK, 0);
    NOTE(readable(pair.server(), 5000));
    NOTE(take(pair.server(), 9));
    SEE(send(pair.client(), "body", 4, 0));
    NOTE(take(pair.server(), 4));
  }
}

CASE(cork, holds_for_a_time) {
  Pair pair;
  set(pair.client(), TCP_CORK, 1);
  for (int i = 0; i < 2; ++i) {
    const Early early;
    SEE(send(pair.client(), "alone", 5, 0));
    NOTE(early.arrive(pair.server(), 20));
    NOTE(readable(pair.server(), 5000));
    NOTE(take(pair.server(), 5));
  }
}

CASE(cork, more_waits_for_it) {
  Pair pair;
  for (int i = 0; i < 3; ++i) {
    const Early early;
    SEE(send(pair.client(), "head ", 5, MSG_MORE));
    iovec part{const_cast<char*>("and "), 4};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    SEE(sendmsg(pair.client(), &message, MSG_MORE));
    NOTE(early.arrive(pair.server(), 20));
    SEE(send(pair.client(), "body", 4, 0));
    NOTE(take(pair.server(), 13));
  }
  SEE(send(pair.client(), "no more", 7, MSG_MORE));
  NOTE(readable(pair.server(), 5000));
  NOTE(take(pair.server(), 7));
}

CASE(cork, no_delay_pushes) {
  Pair pair;
  set(pair.client(), TCP_CORK, 1);
  const Early early;
  SEE(send(pair.client(), "head ", 5, 0));
  NOTE(early.arrive(pair.server(), 20));
  set(pair.client(), TCP_NODELAY, 1);
  NOTE(take(pair.server(), 5));
}

CASE(cork, the_end_pushes) {
  for (const bool closes : {false, true}) {
    Pair pair;
    set(pair.client(), TCP_CORK, 1);
    const Early early;
    SEE(send(pair.client(), "last words", 10, 0));
    NOTE(early.arrive(pair.server(), 10));
    if (closes) {
      pair.close_client();
    } else {
      SEE(shutdown(pair.client(), SHUT_WR));
    }
    NOTE(take(pair.server(), 100));
  }
}

CASE(cork, what_is_full_goes) {
  Pair pair;
  const std::string data = text(400'000);
  set(pair.client(), TCP_CORK, 1);
  {
    const Later sends(0, [&] {
      for (size_t at = 0; at < data.size(); at += 1000) give(pair.client(), data.substr(at, 1000));
      const int off = 0;
      setsockopt(pair.client(), IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    });
    NOTE(take(pair.server(), data.size()) == data);
  }
  set(pair.client(), TCP_CORK, 1);
  give(pair.client(), data.substr(0, 150'000));
  NOTE(readable(pair.server(), 5000));
  set(pair.client(), TCP_CORK, 0);
  NOTE(take(pair.server(), 150'000) == data.substr(0, 150'000));
}

CASE(cork, fills_without_a_reader) {
  Pair pair(true);
  set(pair.client(), TCP_CORK, 1);
  const size_t taken = fill(pair);
  NOTE(taken > 0);
  NOTE(take(pair.server(), taken).size() == taken);
  set(pair.client(), TCP_CORK, 0);
  give(pair.client(), "more");
  NOTE(take(pair.server(), 4));
}

CASE(cork, a_child_does_not_lose_it) {
  Pair pair;
  set(pair.client(), TCP_CORK, 1);
  SEE(send(pair.client(), "parent ", 7, 0));
  forget(pair.client());
  forget(pair.server());
  const pid_t child = fork_quietly();
  if (child == 0) {
    const ssize_t sent = write(pair.client(), "child", 5);
    _exit(sent == 5 ? 0 : 1);
  }
  int status = -1;
  SEE(waitpid(child, &status, 0) == child);
  NOTE(status);
  set(pair.client(), TCP_CORK, 0);
  NOTE(take(pair.server(), 12));
}

}  // namespace conformance

// SO_RCVLOWAT: how many bytes have to be there; TCP_INQ: how many are left.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

void set(int fd, int level, int name, int value) {
  SEE(setsockopt(fd, level, name, &value, sizeof value));
}

void set_mark(int fd, int bytes) {
  set(fd, SOL_SOCKET, SO_RCVLOWAT, bytes);
  int value = 0;
  socklen_t length = sizeof value;
  SEE(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &length));
  NOTE(value);
}

/// Checks that the options do not bring the stream back to the kernel.
void see_that_it_stays(const Pair& pair) {
  if (mode() == Mode::engine) settle(pair.client(), pair.server());
}

short ready(int fd, int milliseconds) {
  pollfd entry{fd, POLLIN | POLLRDHUP, 0};
  return poll(&entry, 1, milliseconds) == 1 ? entry.revents : short{0};
}

/// Notes what recvmsg() receives: at most `size` bytes, and control data for which there are `room`
/// bytes.
void see_message(int fd, size_t size, int flags, size_t room = 64) {
  char data[64] = {};
  alignas(cmsghdr) char control[64];
  std::memset(control, 0, sizeof control);
  iovec part{data, size};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room != 0 ? control : nullptr;
  message.msg_controllen = room;
  SEE(recvmsg(fd, &message, flags));
  NOTE(std::string(data, strnlen(data, size)));
  NOTE(message.msg_controllen);
  NOTE(message.msg_flags);
  if (message.msg_controllen < sizeof(cmsghdr)) return;
  cmsghdr header;
  std::memcpy(&header, control, sizeof header);
  const size_t size_of_all = header.cmsg_len;
  const bool is_it = header.cmsg_level == IPPROTO_TCP && header.cmsg_type == TCP_CM_INQ;
  NOTE(size_of_all);
  NOTE(is_it);
  int left = 0;
  std::memcpy(&left, control + sizeof header, sizeof left);
  NOTE(left);
}

void await_queued(int fd, int bytes) {
  for (int queued = 0; queued < bytes; usleep(200)) ioctl(fd, FIONREAD, &queued);
}

}  // namespace

CASE(low_water, poll_waits_for_enough) {
  Pair pair;
  set_mark(pair.server(), 10);
  see_that_it_stays(pair);
  for (int i = 0; i < 5; ++i) {
    give(pair.client(), text(6));
    await_queued(pair.server(), 6);
    NOTE(ready(pair.server(), 15));
    {
      const Later later(20, [&] { give(pair.client(), text(6, 6)); });
      NOTE(ready(pair.server(), 5000));
    }
    await_queued(pair.server(), 12);
    NOTE(take(pair.server(), 12));
  }
}

CASE(low_water, select_waits_for_enough) {
  Pair pair;
  set_mark(pair.server(), 10);
  see_that_it_stays(pair);
  give(pair.client(), text(9));
  await_queued(pair.server(), 9);
  const auto readable = [&](long milliseconds) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair.server(), &set);
    timeval limit{milliseconds / 1000, milliseconds % 1000 * 1000};
    return select(pair.server() + 1, &set, nullptr, nullptr, &limit);
  };
  NOTE(readable(15));
  const Later later(20, [&] { give(pair.client(), "j"); });
  NOTE(readable(5000));
}

CASE(low_water, a_set_waits_for_enough) {
  for (const uint32_t mode : {uint32_t{0}, uint32_t{EPOLLET}}) {
    Pair pair;
    set_mark(pair.server(), 10);
    const int set = epoll_create1(0);
    epoll_event event{};
    event.events = EPOLLIN | mode;
    SEE(epoll_ctl(set, EPOLL_CTL_ADD, pair.server(), &event));
    for (int i = 0; i < 5; ++i) {
      give(pair.client(), text(6));
      await_queued(pair.server(), 6);
      SEE(epoll_wait(set, &event, 1, 15));
      {
        const Later later(20, [&] { give(pair.client(), text(6, 6)); });
        SEE(epoll_wait(set, &event, 1, 5000));
      }
      await_queued(pair.server(), 12);
      NOTE(take(pair.server(), 12));
    }
    close(set);
  }
}

CASE(low_water, a_read_waits_for_enough_or_its_buffer) {
  Pair pair;
  set_mark(pair.server(), 10);
  see_that_it_stays(pair);
  char data[40] = {};
  {
    const Later both(10, [&] {
      give(pair.client(), text(6));
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      give(pair.client(), text(5, 6));
    });
    SEE(recv(pair.server(), data, sizeof data, 0));
  }
  NOTE(std::string(data));
  give(pair.client(), text(6));
  SEE(recv(pair.server(), data, 4, 0));
  SEE(read(pair.server(), data, 2));
  give(pair.client(), text(3));
  await_queued(pair.server(), 3);
  // A call that does not wait gets what is there.
  SEE(recv(pair.server(), data, sizeof data, MSG_DONTWAIT));
  SEE(recv(pair.server(), data, sizeof data, MSG_DONTWAIT));
  // So does a call that has waited long enough.
  set_receive_timeout(pair.server(), 30);
  give(pair.client(), text(3));
  SEE(recv(pair.server(), data, sizeof data, 0));
  SEE(recv(pair.server(), data, sizeof data, 0));
}

CASE(low_water, an_end_is_enough) {
  Pair pair;
  set_mark(pair.server(), 10);
  see_that_it_stays(pair);
  give(pair.client(), text(4));
  await_queued(pair.server(), 4);
  NOTE(ready(pair.server(), 10));
  char data[40];
  {
    const Later ends(20, [&] { shutdown(pair.client(), SHUT_WR); });
    NOTE((ready(pair.server(), 5000) & POLLIN) != 0);
  }
  SEE(recv(pair.server(), data, sizeof data, 0));
  SEE(recv(pair.server(), data, sizeof data, 0));
}

CASE(low_water, a_lower_one_wakes) {
  Pair pair;
  set_mark(pair.server(), 10);
  see_that_it_stays(pair);
  give(pair.client(), text(4));
  await_queued(pair.server(), 4);
  NOTE(ready(pair.server(), 10));
  {
    const Later lowers(20, [&] {
      const int mark = 3;
      setsockopt(pair.server(), SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark);
    });
    NOTE(ready(pair.server(), 5000));
  }
  set_mark(pair.server(), 0);
  NOTE(take(pair.server(), 4));
  give(pair.client(), "a");
  NOTE(ready(pair.server(), 5000));
  NOTE(take(pair.server(), 1));
}

CASE(low_water, what_a_child_finds) {
  Pair pair;
  set_mark(pair.server(), 10);
  give(pair.client(), text(4));
  await_queued(pair.server(), 4);
  forget(pair.client());
  forget(pair.server());
  // From here on, the kernel alone has the socket.
  const int copy = dup(pair.server());
  FILE* const file = fdopen(copy, "r");
  NOTE(ready(pair.server(), 15));
  set_mark(pair.server(), 12);
  give(pair.client(), text(6));
  NOTE(ready(pair.server(), 15));
  give(pair.client(), text(2));
  NOTE(ready(pair.server(), 5000));
  NOTE(take(pair.server(), 12));
  fclose(file);
}

CASE(low_water, much) {
  Pair pair;
  set_mark(pair.server(), 150'000);
  see_that_it_stays(pair);
  {
    const Later sends(0, [&] {
      give(pair.client(), text(100'000));
      give(pair.client(), text(60'000));
    });
    NOTE(ready(pair.server(), 5000));
    int queued = 0;
    ioctl(pair.server(), FIONREAD, &queued);
    NOTE(queued >= 150'000);
  }
  NOTE(take(pair.server(), 160'000).size());
}

CASE(low_water, how_much_is_left) {
  Pair pair;
  set(pair.server(), IPPROTO_TCP, TCP_INQ, 1);
  see_that_it_stays(pair);
  give(pair.client(), text(20));
  await_queued(pair.server(), 20);
  see_message(pair.server(), 4, 0);
  see_message(pair.server(), 4, MSG_PEEK);
  see_message(pair.server(), 0, 0);
  see_message(pair.server(), 2, 0, 0);
  see_message(pair.server(), 2, 0, 8);
  see_message(pair.server(), 2, 0, sizeof(cmsghdr));
  see_message(pair.server(), 2, 0, sizeof(cmsghdr) + 4);
  see_message(pair.server(), 2, 0, sizeof(cmsghdr) + 8);
  see_message(pair.server(), 10, 0);
  see_message(pair.server(), 10, MSG_DONTWAIT);
  // Other calls have no place for the number.
  give(pair.client(), "abc");
  NOTE(take(pair.server(), 1));
  set(pair.server(), IPPROTO_TCP, TCP_INQ, 0);
  see_message(pair.server(), 1, 0);
  set(pair.server(), IPPROTO_TCP, TCP_INQ, 1);
  shutdown(pair.client(), SHUT_WR);
  await_end(pair.server());
  // The end of the stream counts, too.
  see_message(pair.server(), 10, 0);
  see_message(pair.server(), 10, 0);
  set(pair.server(), IPPROTO_TCP, TCP_INQ, 2);
}

}  // namespace conformance

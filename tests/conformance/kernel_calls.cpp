// Calls and options that the engine does not serve: the stream moves to the kernel first.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "config/system_call.hpp"
#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }

 private:
  std::array<int, 2> ends_{};
};

void set(int fd, int level, int name, int value) {
  SEE(setsockopt(fd, level, name, &value, sizeof value));
}

int readable(int fd, int milliseconds) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, milliseconds);
}

}  // namespace

CASE(kernel_calls, splice_to_a_pipe) {
  Pair pair;
  const Pipe pipe;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(splice(pair.server(), nullptr, pipe.in(), nullptr, 100, 0));
  NOTE(take(pair.server(), 0));
  char data[10] = {};
  SEE(read(pipe.out(), data, sizeof data));
  NOTE(std::string(data));
  give(pair.client(), "later");
  SEE(splice(pair.server(), nullptr, pipe.in(), nullptr, 5, SPLICE_F_MOVE));
  set_nonblocking(pair.server());
  SEE(splice(pair.server(), nullptr, pipe.in(), nullptr, 5, 0));
  pair.close_client();
  await_end(pair.server());
  SEE(splice(pair.server(), nullptr, pipe.in(), nullptr, 5, 0));
}

CASE(kernel_calls, splice_from_a_pipe) {
  Pair pair;
  const Pipe pipe;
  give(pair.client(), "before ");
  SEE(write(pipe.in(), "through a pipe", 14));
  SEE(splice(pipe.out(), nullptr, pair.client(), nullptr, 14, 0));
  give(pair.client(), " behind");
  NOTE(take(pair.server(), 28));
}

CASE(kernel_calls, splice_and_its_kin_refuse) {
  Pair pair;
  const Pipe pipe;
  off64_t offset = 0;
  iovec part{&offset, sizeof offset};
  SEE(splice(pair.client(), nullptr, pair.server(), nullptr, 10, 0));
  SEE(splice(pair.client(), &offset, pipe.in(), nullptr, 10, 0));
  SEE(tee(pair.client(), pipe.in(), 10, 0));
  SEE(tee(pipe.out(), pair.client(), 10, 0));
  SEE(vmsplice(pair.client(), &part, 1, 0));
  SEE(copy_file_range(pair.client(), nullptr, pair.server(), nullptr, 10, 0));
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(kernel_calls, few_bytes_are_not_readable) {
  Pair pair(true);
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  set(pair.server(), SOL_SOCKET, SO_RCVLOWAT, 10);
  NOTE(readable(pair.server(), 30));
  give(pair.client(), "more");
  NOTE(readable(pair.server(), 5000));
  NOTE(take(pair.server(), 10));
}

CASE(kernel_calls, a_read_waits_for_enough) {
  Pair pair;
  set(pair.server(), SOL_SOCKET, SO_RCVLOWAT, 8);
  const Later later(20, [&] { give(pair.client(), "12345678"); });
  char data[20] = {};
  SEE(recv(pair.server(), data, sizeof data, 0));
  NOTE(std::string(data));
}

CASE(kernel_calls, what_a_listening_socket_asks_for) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  set(listener, SOL_SOCKET, SO_RCVLOWAT, 5);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  SEE(connect(client, reinterpret_cast<sockaddr*>(&address), length));
  const int server = accept(listener, nullptr, nullptr);
  give(client, "1234");
  NOTE(readable(server, 30));
  give(client, "5");
  NOTE(readable(server, 5000));
  NOTE(take(server, 5));
  close(client);
  close(server);
  close(listener);
}

CASE(kernel_calls, sends_without_a_copy) {
  Pair pair;
  // The flag alone has no effect.
  SEE(send(pair.client(), "a", 1, MSG_ZEROCOPY));
  set(pair.client(), SOL_SOCKET, SO_ZEROCOPY, 1);
  const std::string data = text(50'000);
  SEE(send(pair.client(), data.data(), data.size(), MSG_ZEROCOPY));
  NOTE(digest(take(pair.server(), 50'001)));
  // The kernel reports when it is done with the bytes.
  pollfd done{pair.client(), 0, 0};
  NOTE(poll(&done, 1, 5000));
  NOTE(done.revents);
  alignas(cmsghdr) char control[200];
  msghdr message{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  SEE(recvmsg(pair.client(), &message, MSG_ERRQUEUE));
  NOTE(message.msg_flags);
  SEE(recvmsg(pair.client(), &message, MSG_ERRQUEUE));
}

CASE(kernel_calls, how_much_is_left_comes_with_what_was_read) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  set(pair.server(), IPPROTO_TCP, TCP_INQ, 1);
  char data[4];
  iovec part{data, sizeof data};
  alignas(cmsghdr) char control[100];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  SEE(recvmsg(pair.server(), &message, 0));
  const cmsghdr* const left = CMSG_FIRSTHDR(&message);
  NOTE(left != nullptr && left->cmsg_type == TCP_CM_INQ);
  int bytes = -1;
  if (left != nullptr) std::memcpy(&bytes, CMSG_DATA(left), sizeof bytes);
  NOTE(bytes);
}

CASE(kernel_calls, descriptors_closed_and_copied_by_syscall) {
  Pair pair;
  give(pair.client(), "before");
  const int copy = static_cast<int>(syscall(SYS_dup, pair.server()));
  NOTE(take(copy, 6));
  forget(pair.server());
  // Closes as libuv does. The next file that is opened gets the number.
  SEE(syscall(SYS_close, pair.server()));
  const int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  NOTE(file == pair.server());
  char bytes[4];
  SEE(read(file, bytes, sizeof bytes));
  SEE(syscall(SYS_dup3, copy, file, O_CLOEXEC));
  SEE(syscall(SYS_close, copy));
  SEE(send(file, "after", 5, 0));
  NOTE(take(pair.client(), 5));
  SEE(syscall(SYS_close_range, file, file, 0));
  await_end(pair.client());
  SEE(recv(pair.client(), bytes, sizeof bytes, 0));
  SEE(syscall(SYS_close, file));
  SEE(syscall(SYS_dup, file));
}

CASE(kernel_calls, a_number_that_was_closed_unseen_and_is_connected_anew) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  Pair old;
  give(old.server(), "unread");
  await_bytes(old.client(), 6);
  forget(old.client());
  const int lowest = dup(listener);  // so that the next socket gets the number of `old`
  sidestep::config::system_call(SYS_close, old.client());
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  NOTE(client == old.client());
  SEE(connect(client, reinterpret_cast<sockaddr*>(&address), length));
  const int server = accept(listener, nullptr, nullptr);
  // The unread bytes of the old stream reset the old stream, not this one.
  linger found{};
  length = sizeof found;
  SEE(getsockopt(client, SOL_SOCKET, SO_LINGER, &found, &length));
  NOTE(found.l_onoff);
  give(client, "new");
  NOTE(take(server, 3));
  close(client);
  await_end(server);
  char byte;
  SEE(recv(server, &byte, 1, 0));
  for (const int fd : {server, lowest, listener}) close(fd);
}

CASE(kernel_calls, a_number_that_was_closed_unseen_and_is_another_kind_of_socket_now) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // no name: the kernel chooses one
  socklen_t length = sizeof address.sun_family;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  const int client = socket(AF_UNIX, SOCK_STREAM, 0);
  SEE(bind(listener, generic, length));
  SEE(listen(listener, 1));
  length = sizeof address;
  getsockname(listener, generic, &length);
  SEE(connect(client, generic, length));
  Pair old;
  give(old.server(), "unread");
  await_bytes(old.client(), 6);
  forget(old.client());
  const int lowest = dup(listener);
  sidestep::config::system_call(SYS_close, old.client());
  const int server = accept(listener, nullptr, nullptr);
  NOTE(server == old.client());
  SEE(send(client, "new", 3, 0));
  NOTE(take(server, 3));
  for (const int fd : {server, client, lowest, listener}) close(fd);
}

CASE(kernel_calls, an_upper_layer_that_there_is_not) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  SEE(setsockopt(pair.server(), IPPROTO_TCP, TCP_ULP, "none", 4));
  NOTE(take(pair.server(), 6));
  give(pair.server(), "x");
  NOTE(take(pair.client(), 1));
}

}  // namespace conformance

// Calls on streams and epoll sets made through syscall(), as some runtimes make them.
#include <linux/aio_abi.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/set.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {

CASE(by_number, reading_and_writing) {
  Pair pair;
  char data[8] = "abcdefg";
  iovec parts[] = {{data, 2}, {data + 2, 3}};
  SEE(syscall(SYS_write, pair.client(), data, 7));
  SEE(syscall(SYS_writev, pair.client(), parts, 2));
  SEE(syscall(SYS_sendto, pair.client(), data, 3, MSG_NOSIGNAL, nullptr, 0));
  SEE(syscall(SYS_pwritev2, pair.client(), parts, 2, -1L, -1L, 0));
  await_bytes(pair.server(), 20);
  SEE(syscall(SYS_read, pair.server(), data, 4));
  NOTE(std::string(data, 4));
  SEE(syscall(SYS_recvfrom, pair.server(), data, 3, MSG_PEEK, nullptr, nullptr));
  NOTE(std::string(data, 3));
  SEE(syscall(SYS_readv, pair.server(), parts, 2));
  NOTE(std::string(data, 5));
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  SEE(syscall(SYS_recvmsg, pair.server(), &message, MSG_WAITALL));
  NOTE(std::string(data, 5));
  SEE(syscall(SYS_sendmsg, pair.server(), &message, 0));
  NOTE(take(pair.client(), 5));
  SEE(syscall(SYS_preadv2, pair.server(), parts, 2, -1L, -1L, RWF_NOWAIT));
  NOTE(std::string(data, 5));
  SEE(syscall(SYS_preadv2, pair.server(), parts, 2, 0L, 0L, 0));
  SEE(syscall(SYS_shutdown, pair.client(), SHUT_WR));
  NOTE(take(pair.server(), 2));
}

CASE(by_number, epoll) {
  Pair pair;
  const int set = static_cast<int>(syscall(SYS_epoll_create1, EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  event.data.u64 = 3;
  SEE(syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, pair.server(), &event));
  for (int i = 0; i < 20; ++i) {
    give(pair.client(), "x");
    SEE(syscall(SYS_epoll_pwait, set, &event, 1, 5000, nullptr, 8));
    NOTE(event.data.u64);
    NOTE(take(pair.server(), 1));
  }
  const timespec moment{0, 1'000'000};
  SEE(syscall(SYS_epoll_pwait2, set, &event, 1, &moment, nullptr, 8));
  sigset_t none;
  sigemptyset(&none);
  SEE(syscall(SYS_epoll_pwait, set, &event, 1, 0, &none, 7));
  SEE(syscall(SYS_epoll_ctl, set, EPOLL_CTL_DEL, pair.server(), nullptr));
  SEE(syscall(SYS_epoll_ctl, set, EPOLL_CTL_DEL, pair.server(), nullptr));
  SEE(syscall(SYS_close, set));
}

CASE(by_number, waiting) {
  Pair pair;
  pollfd one{pair.server(), POLLIN, 0};
  timespec time{0, 20'000'000};
  SEE(syscall(SYS_ppoll, &one, 1, &time, nullptr, 8));
  NOTE(time.tv_sec);  // the kernel leaves the remaining time here
  NOTE(time.tv_nsec);
  give(pair.client(), "x");
  time = {100, 0};
  SEE(syscall(SYS_ppoll, &one, 1, &time, nullptr, 8));
  NOTE(one.revents);
  NOTE(time.tv_sec > 10 && time.tv_sec < 100);
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.server(), &in);
  time = {100, 0};
  SEE(syscall(SYS_pselect6, pair.server() + 1, &in, nullptr, nullptr, &time, nullptr));
  NOTE(FD_ISSET(pair.server(), &in) != 0);
  NOTE(time.tv_sec > 10 && time.tv_sec < 100);
  sigset_t none;
  sigemptyset(&none);
  SEE(syscall(SYS_ppoll, &one, 1, nullptr, &none, 7));
}

CASE(by_number, waiting_with_a_time_that_cannot_be_written) {
  Pair pair;
  pollfd one{pair.server(), POLLIN, 0};
  static const timespec kMoment{0, 1'000'000};
  SEE(syscall(SYS_ppoll, &one, 1, &kMoment, nullptr, 8));
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.server(), &in);
  SEE(syscall(SYS_pselect6, pair.server() + 1, &in, nullptr, nullptr, &kMoment, nullptr));
}

CASE(by_number, passing_a_descriptor) {
  for (const bool several : {false, true}) {
    Pair pair;
    int ends[2];
    SEE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    give(pair.client(), "before ");
    await_bytes(pair.server(), 7);
    char byte = 'd';
    iovec part{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    message.msg_hdr.msg_control = control;
    message.msg_hdr.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message.msg_hdr);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int passed = pair.server();
    std::memcpy(CMSG_DATA(header), &passed, sizeof passed);
    if (several) {
      SEE(syscall(SYS_sendmmsg, ends[0], &message, 1, 0));
    } else {
      SEE(syscall(SYS_sendmsg, ends[0], &message.msg_hdr, 0));
    }
    // Finds what another process would find: the shim does not know this descriptor.
    SEE(syscall(SYS_recvmsg, ends[1], &message.msg_hdr, 0));
    int received = -1;
    std::memcpy(&received, CMSG_DATA(header), sizeof received);
    give(pair.client(), "after");
    std::string all;
    char data[16];
    for (ssize_t got = 1; all.size() < 12 && got > 0;) {
      got = syscall(SYS_read, received, data, sizeof data);
      if (got > 0) all.append(data, static_cast<size_t>(got));
    }
    NOTE(all);
    SEE(syscall(SYS_write, received, "answer", 6));
    NOTE(take(pair.client(), 6));
    close(received);
    close(ends[0]);
    close(ends[1]);
  }
}

CASE(by_number, asynchronous_reads) {
  Pair pair;
  aio_context_t context = 0;
  SEE(syscall(SYS_io_setup, 4, &context));
  char data[16];
  iocb ready{};
  ready.aio_lio_opcode = IOCB_CMD_POLL;
  ready.aio_fildes = static_cast<uint32_t>(pair.server());
  ready.aio_buf = POLLIN;
  iocb reading{};
  reading.aio_lio_opcode = IOCB_CMD_PREAD;
  reading.aio_fildes = static_cast<uint32_t>(pair.server());
  reading.aio_buf = reinterpret_cast<uintptr_t>(data);
  reading.aio_nbytes = sizeof data;
  for (iocb* request : {&ready, &reading}) {
    if (request == &ready) {
      SEE(syscall(SYS_io_submit, context, 1, &request));
      give(pair.client(), "hello");
    } else {
      SEE(syscall(SYS_io_submit, context, 1, &request));
    }
    io_event event{};
    timespec limit{10, 0};
    SEE(syscall(SYS_io_getevents, context, 1, 1, &event, &limit));
    NOTE(event.res);
  }
  NOTE(std::string(data, 5));
  SEE(syscall(SYS_io_destroy, context));
}

}  // namespace conformance

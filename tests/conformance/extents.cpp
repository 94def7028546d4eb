// How much a call takes, for flags and calls where that is not simply what is there.
#include <aio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// Receives, and notes the whole buffer as a program that peeks sees it.
void see_peek(int fd, size_t size, int flags) {
  std::string data(size, '-');
  SEE(recv(fd, data.data(), data.size(), flags));
  const int error = errno;
  NOTE(data);
  errno = error;
}

ssize_t await_request(aiocb& request) {
  const std::array<const aiocb*, 1> list{&request};
  while (aio_error(&request) == EINPROGRESS) aio_suspend(list.data(), 1, nullptr);
  return aio_return(&request);
}

aiocb request_of(int fd, void* data, size_t size) {
  aiocb request{};
  request.aio_fildes = fd;
  request.aio_buf = data;
  request.aio_nbytes = size;
  return request;
}

}  // namespace

CASE(extents, truncate_discards) {
  Pair pair;
  give(pair.client(), text(20));
  await_bytes(pair.server(), 20);
  SEE(recv(pair.server(), nullptr, 4, MSG_TRUNC));
  see_peek(pair.server(), 3, MSG_TRUNC);
  see_peek(pair.server(), 3, 0);
  iovec part{nullptr, 100};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  SEE(recvmsg(pair.server(), &message, MSG_TRUNC));
  NOTE(message.msg_flags);
  SEE(recv(pair.server(), nullptr, 4, MSG_TRUNC | MSG_DONTWAIT));
}

CASE(extents, peek_and_truncate_leaves_the_buffer) {
  Pair pair;
  give(pair.client(), "abcd");
  await_bytes(pair.server(), 4);
  see_peek(pair.server(), 3, MSG_PEEK | MSG_TRUNC);
  SEE(recv(pair.server(), nullptr, 100, MSG_PEEK | MSG_TRUNC));
  see_peek(pair.server(), 8, MSG_DONTWAIT);
}

CASE(extents, peek_and_wait_for_all) {
  Pair pair;
  give(pair.client(), text(10));
  await_bytes(pair.server(), 10);
  {
    const Later later(50, [&] { give(pair.client(), text(10, 10)); });
    see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  }
  see_peek(pair.server(), 5, MSG_PEEK | MSG_WAITALL);
  see_peek(pair.server(), 30, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT);
  NOTE(take(pair.server(), 20));
  {
    const Later later(50, [&] {
      for (size_t i = 0; i < 10; ++i) give(pair.client(), text(1, i));
    });
    see_peek(pair.server(), 10, MSG_PEEK | MSG_WAITALL);
  }
  NOTE(take(pair.server(), 10));
}

CASE(extents, peek_and_wait_for_all_until_the_end) {
  Pair pair;
  give(pair.client(), text(10));
  await_bytes(pair.server(), 10);
  {
    const Later later(50, [&] {
      give(pair.client(), text(3, 10));
      shutdown(pair.client(), SHUT_WR);
    });
    see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  }
  see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  NOTE(take(pair.server(), 13));
  see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
}

CASE(extents, peek_and_wait_for_all_with_a_timeout) {
  Pair pair;
  set_receive_timeout(pair.server(), 100);
  see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  give(pair.client(), text(10));
  await_bytes(pair.server(), 10);
  see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  NOTE(take(pair.server(), 10));
}

CASE(extents, peek_and_wait_for_all_interrupted) {
  Pair pair;
  give(pair.client(), text(10));
  await_bytes(pair.server(), 10);
  for (const bool restart : {false, true}) {
    const Interruptions interruptions(restart);
    see_peek(pair.server(), 20, MSG_PEEK | MSG_WAITALL);
  }
  NOTE(take(pair.server(), 10));
}

CASE(extents, messages_at_once) {
  Pair pair;
  std::vector<mmsghdr> messages(1025);
  char byte = 'z';
  iovec part{&byte, 1};
  for (mmsghdr& one : messages) {
    one.msg_hdr.msg_iov = &part;
    one.msg_hdr.msg_iovlen = 1;
  }
  SEE(sendmmsg(pair.client(), messages.data(), 1025, 0));
  SEE(sendmmsg(pair.client(), messages.data(), 1, 0));
  await_bytes(pair.server(), 1025);
  NOTE(take(pair.server(), 1025).size());
  SEE(sendmmsg(pair.client(), nullptr, 0, 0));
  SEE(recvmmsg(pair.server(), nullptr, 0, 0, nullptr));
}

CASE(extents, vectors_without_an_offset) {
  Pair pair;
  char data[16] = {};
  iovec out[2] = {{const_cast<char*>("hel"), 3}, {const_cast<char*>("lo"), 2}};
  iovec in[2] = {{data, 4}, {data + 4, 8}};
  SEE(pwritev2(pair.client(), out, 2, -1, 0));
  await_bytes(pair.server(), 5);
  SEE(preadv2(pair.server(), in, 2, -1, 0));
  NOTE(std::string(data));
  SEE(pwritev64v2(pair.client(), out, 2, -1, 0));
  await_bytes(pair.server(), 5);
  SEE(preadv64v2(pair.server(), in, 2, -1, RWF_HIPRI));
  SEE(preadv2(pair.server(), in, 2, 0, 0));
  SEE(pwritev2(pair.client(), out, 2, 0, 0));
  SEE(preadv2(pair.server(), in, 2, -1, 1 << 30));
  SEE(pread(pair.server(), data, 4, 0));
  SEE(pwrite(pair.client(), data, 4, 0));
  SEE(preadv(pair.server(), in, 2, 0));
  SEE(pwritev(pair.client(), out, 2, 0));
  give(pair.client(), "there");
  await_bytes(pair.server(), 5);
  NOTE(take(pair.server(), 5));
}

CASE(extents, vectors_that_do_not_wait) {
  Pair pair;
  char data[16] = {};
  const iovec in{data, sizeof data};
  const iovec out{const_cast<char*>("there"), 5};
  SEE(preadv2(pair.server(), &in, 1, -1, RWF_NOWAIT));
  SEE(pwritev2(pair.client(), &out, 1, -1, RWF_NOWAIT));
  give(pair.client(), "x");
  await_bytes(pair.server(), 1);
  NOTE(preadv2(pair.server(), &in, 1, -1, RWF_NOWAIT) != 0);
}

CASE(extents, asynchronous_requests) {
  Pair pair;
  for (int i = 0; i < 5; ++i) {
    std::string sent = text(1000, static_cast<size_t>(i));
    std::string received(1000, '-');
    aiocb write = request_of(pair.client(), sent.data(), sent.size());
    SEE(aio_write(&write));
    NOTE(await_request(write));
    await_bytes(pair.server(), 1000);
    aiocb read = request_of(pair.server(), received.data(), received.size());
    SEE(aio_read(&read));
    NOTE(await_request(read));
    NOTE(received == sent);
  }
  give(pair.server(), "back");
  await_bytes(pair.client(), 4);
  NOTE(take(pair.client(), 4));
}

CASE(extents, asynchronous_requests_of_a_list) {
  Pair pair;
  give(pair.client(), "unread");
  await_bytes(pair.server(), 6);
  char in[6] = {};
  char out[] = "hello";
  aiocb read = request_of(pair.server(), in, sizeof in);
  read.aio_lio_opcode = LIO_READ;
  aiocb write = request_of(pair.server(), out, 5);
  write.aio_lio_opcode = LIO_WRITE;
  aiocb* const list[] = {&read, nullptr, &write};
  SEE(lio_listio(LIO_WAIT, list, 3, nullptr));
  NOTE(aio_return(&read));
  NOTE(std::string(in, sizeof in));
  await_bytes(pair.client(), 5);
  NOTE(take(pair.client(), 5));
}

}  // namespace conformance

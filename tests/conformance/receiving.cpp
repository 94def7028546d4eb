// Every call that takes bytes from a stream.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

// The functions that a program compiled with _FORTIFY_SOURCE calls.
extern "C" {
ssize_t __read_chk(int fd, void* data, size_t size, size_t room);
ssize_t __recv_chk(int fd, void* data, size_t size, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void* data, size_t size, size_t room, int flags, sockaddr* from,
                       socklen_t* length);
}

namespace conformance {
namespace {

/// A call that receives. `flags` is 0 for calls that have none.
struct Receiver {
  const char* name;
  bool has_flags;
  ssize_t (*call)(int fd, void* data, size_t size, int flags);
};

/// Returns two parts, to see what happens when the bytes cross the border between them.
std::array<iovec, 2> halves(void* data, size_t size) {
  return {iovec{data, size / 2}, iovec{static_cast<char*>(data) + size / 2, size - size / 2}};
}

const Receiver kReceivers[] = {
    {"read", false, [](int fd, void* data, size_t size, int) { return read(fd, data, size); }},
    {"readv", false,
     [](int fd, void* data, size_t size, int) {
       const auto parts = halves(data, size);
       return readv(fd, parts.data(), 2);
     }},
    {"recv", true,
     [](int fd, void* data, size_t size, int flags) { return recv(fd, data, size, flags); }},
    {"recvfrom", true,
     [](int fd, void* data, size_t size, int flags) {
       return recvfrom(fd, data, size, flags, nullptr, nullptr);
     }},
    {"recvmsg", true,
     [](int fd, void* data, size_t size, int flags) {
       auto parts = halves(data, size);
       msghdr message{};
       message.msg_iov = parts.data();
       message.msg_iovlen = parts.size();
       return recvmsg(fd, &message, flags);
     }},
    {"recvmmsg", true,
     [](int fd, void* data, size_t size, int flags) -> ssize_t {
       auto parts = halves(data, size);
       mmsghdr message{};
       message.msg_hdr.msg_iov = parts.data();
       message.msg_hdr.msg_iovlen = parts.size();
       const int count = recvmmsg(fd, &message, 1, flags, nullptr);
       return count == 1 ? static_cast<ssize_t>(message.msg_len) : count;
     }},
    {"read_chk", false,
     [](int fd, void* data, size_t size, int) { return __read_chk(fd, data, size, size); }},
    {"recv_chk", true,
     [](int fd, void* data, size_t size, int flags) {
       return __recv_chk(fd, data, size, size, flags);
     }},
    {"recvfrom_chk", true,
     [](int fd, void* data, size_t size, int flags) {
       return __recvfrom_chk(fd, data, size, size, flags, nullptr, nullptr);
     }},
};

/// Makes the call that a case is about.
class Call {
 public:
  explicit Call(const Receiver& receiver) : receiver_(receiver) {}
  /// Adds the result and the received bytes to the transcript.
  ssize_t operator()(int fd, size_t size, int flags = 0) const {
    std::vector<char> data(size + 1, '-');
    const ssize_t result = see(std::string("receives ") + std::to_string(size),
                               [&] { return receiver_.call(fd, data.data(), size, flags); });
    const int error = errno;
    const size_t got = result > 0 ? static_cast<size_t>(result) : 0;
    const std::string bytes(data.data(), got < size ? got : size);
    if (result > 0) add_line("  which are", size <= 64 ? bytes : digest(bytes));
    errno = error;
    return result;
  }
  ssize_t raw(int fd, void* data, size_t size, int flags = 0) const {
    return receiver_.call(fd, data, size, flags);
  }

 private:
  const Receiver& receiver_;
};

using Body = void (*)(const Call& call);
struct Scenario {
  const char* name;
  Body body;
};

const Scenario kScenarios[] = {
    {"what_is_there",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "hello");
       await_bytes(pair.server(), 5);
       call(pair.server(), 10);
     }},
    {"a_part_of_it",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(10));
       await_bytes(pair.server(), 10);
       call(pair.server(), 4);
       call(pair.server(), 1);
       call(pair.server(), 10);
     }},
    {"several_sends_at_once",
     [](const Call& call) {
       Pair pair;
       for (size_t i = 0; i < 4; ++i) give(pair.client(), text(7, 7 * i));
       await_bytes(pair.server(), 28);
       call(pair.server(), 64);
     }},
    {"both_ways",
     [](const Call& call) {
       Pair pair;
       for (int i = 0; i < 4; ++i) {
         give(pair.client(), "there");
         await_bytes(pair.server(), 5);
         call(pair.server(), 8);
         give(pair.server(), "back");
         await_bytes(pair.client(), 4);
         call(pair.client(), 8);
       }
     }},
    {"nothing_nonblocking",
     [](const Call& call) {
       Pair pair(true);
       call(pair.server(), 10);
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 10);
       call(pair.server(), 10);
     }},
    {"end_after_close",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "end");
       pair.close_client();
       await_end(pair.server());
       call(pair.server(), 10);
       call(pair.server(), 10);
       call(pair.server(), 10);
     }},
    {"end_after_half_close",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "half");
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       call(pair.server(), 10);
       call(pair.server(), 10);
       give(pair.server(), "other half");
       await_bytes(pair.client(), 10);
       call(pair.client(), 20);
     }},
    {"end_nonblocking",
     [](const Call& call) {
       Pair pair(true);
       pair.close_client();
       await_end(pair.server());
       call(pair.server(), 10);
       call(pair.server(), 10);
     }},
    {"zero_bytes",
     [](const Call& call) {
       Pair pair;
       {
         const Later later(20, [&] { give(pair.client(), "x"); });
         call(pair.server(), 0);  // recv() waits, read() does not
       }
       await_bytes(pair.server(), 1);
       call(pair.server(), 0);
       call(pair.server(), 10);
     }},
    {"zero_bytes_nonblocking",
     [](const Call& call) {
       Pair pair(true);
       call(pair.server(), 0);
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 0);
       call(pair.server(), 1);
       pair.close_client();
       await_end(pair.server());
       call(pair.server(), 0);
     }},
    {"no_descriptor",
     [](const Call& call) {
       call(-1, 10);
       Pair pair;
       const int fd = pair.server();
       pair.close_server();
       call(fd, 10);
       call(1 << 19, 10);
     }},
    {"no_address",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "kept");
       await_bytes(pair.server(), 4);
       SEE(call.raw(pair.server(), nullptr, 2));
       call(pair.server(), 10);
     }},
    {"an_address_of_the_kernel",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "kept");
       await_bytes(pair.server(), 4);
       void* const bad = reinterpret_cast<void*>(0xffff'8000'0000'0000U);
       SEE(call.raw(pair.server(), bad, 2));
       call(pair.server(), 10);
     }},
    {"after_own_shutdown",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "before");
       await_bytes(pair.server(), 6);
       SEE(shutdown(pair.server(), SHUT_RD));
       call(pair.server(), 3);
       call(pair.server(), 10);
       call(pair.server(), 10);
     }},
    {"own_shutdown_both",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_RDWR));
       call(pair.server(), 10);
       await_end(pair.client());
       call(pair.client(), 10);
     }},
    {"waits_for_bytes",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { give(pair.client(), "late"); });
       call(pair.server(), 10);
     }},
    {"waits_for_the_end",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { pair.close_client(); });
       call(pair.server(), 10);
     }},
    {"waits_for_half_close",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { shutdown(pair.client(), SHUT_WR); });
       call(pair.server(), 10);
     }},
    {"waits_for_own_shutdown",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { shutdown(pair.server(), SHUT_RD); });
       call(pair.server(), 10);
       call(pair.server(), 10);
     }},
    {"waits_for_a_reset",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { pair.reset_server(); });
       call(pair.client(), 10);
       call(pair.client(), 10);
     }},
    {"time_is_up",
     [](const Call& call) {
       Pair pair;
       set_receive_timeout(pair.server(), 30);
       const auto start = std::chrono::steady_clock::now();
       call(pair.server(), 10);
       NOTE(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(20));
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 10);
     }},
    {"time_is_not_up",
     [](const Call& call) {
       Pair pair;
       set_receive_timeout(pair.server(), 5000);
       const Later later(20, [&] { give(pair.client(), "in time"); });
       call(pair.server(), 10);
     }},
    {"interrupted",
     [](const Call& call) {
       Pair pair;
       const Interruptions interruptions(false);
       call(pair.server(), 10);
     }},
    {"interrupted_and_restarted",
     [](const Call& call) {
       Pair pair;
       const Interruptions interruptions(true);
       const Later later(60, [&] { give(pair.client(), "at last"); });
       call(pair.server(), 10);
     }},
    {"interrupted_with_a_limit",
     [](const Call& call) {
       Pair pair;
       set_receive_timeout(pair.server(), 5000);
       const Interruptions interruptions(true);
       call(pair.server(), 10);
     }},
    {"reset",
     [](const Call& call) {
       Pair pair;
       pair.reset_server();
       await_end(pair.client());
       call(pair.client(), 10);
       call(pair.client(), 10);
     }},
    {"reset_by_unread_bytes",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "nobody reads this");
       await_bytes(pair.server(), 17);
       pair.close_server();
       await_end(pair.client());
       call(pair.client(), 10);
       call(pair.client(), 10);
     }},
    {"many_bytes",
     [](const Call& call) {
       Pair pair;
       const std::string data = text(300'000);
       const Later later(0, [&] { give(pair.client(), data); });
       std::string all;
       std::vector<char> buffer(50'000);
       while (all.size() < data.size()) {
         const ssize_t got = call.raw(pair.server(), buffer.data(), buffer.size());
         if (got <= 0) break;
         all.append(buffer.data(), static_cast<size_t>(got));
       }
       NOTE(digest(all));
     }},
    {"a_byte_at_a_time",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(12));
       await_bytes(pair.server(), 12);
       for (int i = 0; i < 12; ++i) call(pair.server(), 1);
     }},
    {"not_connected",
     [](const Call& call) {
       const int fd = socket(AF_INET, SOCK_STREAM, 0);
       call(fd, 10);
       close(fd);
     }},
    {"listening",
     [](const Call& call) {
       sockaddr_storage address;
       socklen_t length = 0;
       const int fd = listen_loopback(address, length);
       call(fd, 10);
       close(fd);
     }},
    {"through_a_duplicate",
     [](const Call& call) {
       Pair pair;
       const int copy = dup(pair.server());
       give(pair.client(), text(8));
       await_bytes(pair.server(), 8);
       call(copy, 4);
       call(pair.server(), 2);
       pair.close_server();
       call(copy, 10);
       close(copy);
     }},
};

const Scenario kFlagScenarios[] = {
    {"dontwait",
     [](const Call& call) {
       Pair pair;
       call(pair.server(), 10, MSG_DONTWAIT);
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 10, MSG_DONTWAIT);
     }},
    {"peek",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(10));
       await_bytes(pair.server(), 10);
       call(pair.server(), 4, MSG_PEEK);
       call(pair.server(), 20, MSG_PEEK);
       call(pair.server(), 6);
       call(pair.server(), 20, MSG_PEEK);
       call(pair.server(), 20);
     }},
    {"peek_nothing",
     [](const Call& call) {
       Pair pair;
       call(pair.server(), 10, MSG_PEEK | MSG_DONTWAIT);
       pair.close_client();
       await_end(pair.server());
       call(pair.server(), 10, MSG_PEEK);
       call(pair.server(), 10, MSG_PEEK | MSG_DONTWAIT);
     }},
    {"peek_waits",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { give(pair.client(), "late"); });
       call(pair.server(), 10, MSG_PEEK);
       call(pair.server(), 10);
     }},
    {"waitall",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(4));
       const Later later(20, [&] { give(pair.client(), text(6, 4)); });
       call(pair.server(), 10, MSG_WAITALL);
     }},
    {"waitall_and_the_end",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(4));
       const Later later(20, [&] { pair.close_client(); });
       call(pair.server(), 10, MSG_WAITALL);
       call(pair.server(), 10, MSG_WAITALL);
     }},
    {"waitall_and_a_limit",
     [](const Call& call) {
       Pair pair;
       set_receive_timeout(pair.server(), 30);
       give(pair.client(), text(4));
       await_bytes(pair.server(), 4);
       call(pair.server(), 10, MSG_WAITALL);
       call(pair.server(), 10, MSG_WAITALL);
     }},
    {"waitall_interrupted",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(4));
       await_bytes(pair.server(), 4);
       const Interruptions interruptions(false);
       call(pair.server(), 10, MSG_WAITALL);
     }},
    {"waitall_dontwait",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(4));
       await_bytes(pair.server(), 4);
       call(pair.server(), 10, MSG_WAITALL | MSG_DONTWAIT);
       call(pair.server(), 10, MSG_WAITALL | MSG_DONTWAIT);
     }},
    {"waitall_nonblocking",
     [](const Call& call) {
       Pair pair(true);
       give(pair.client(), text(4));
       await_bytes(pair.server(), 4);
       call(pair.server(), 10, MSG_WAITALL);
     }},
    {"waitall_peek",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(10));
       await_bytes(pair.server(), 10);
       call(pair.server(), 10, MSG_WAITALL | MSG_PEEK);
       call(pair.server(), 10);
     }},
    {"trunc_discards",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(10));
       await_bytes(pair.server(), 10);
       std::vector<char> data(8, '-');
       SEE(call.raw(pair.server(), data.data(), 6, MSG_TRUNC));
       call(pair.server(), 10);
     }},
    {"no_urgent_data",
     [](const Call& call) {
       Pair pair;
       call(pair.server(), 1, MSG_OOB);
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 1, MSG_OOB);
       call(pair.server(), 1);
     }},
    {"urgent_data",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "ab");
       SEE(send(pair.client(), "!", 1, MSG_OOB));
       give(pair.client(), "cd");
       await_bytes(pair.server(), 2);
       call(pair.server(), 10);
       call(pair.server(), 1, MSG_OOB);
       const std::string rest = take(pair.server(), 2);
       NOTE(rest);
     }},
    {"error_queue",
     [](const Call& call) {
       Pair pair;
       call(pair.server(), 10, MSG_ERRQUEUE);
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       call(pair.server(), 10, MSG_ERRQUEUE | MSG_DONTWAIT);
       call(pair.server(), 10);
     }},
    {"flags_that_mean_nothing_here",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), text(8));
       await_bytes(pair.server(), 8);
       call(pair.server(), 4, MSG_NOSIGNAL);
       call(pair.server(), 4, MSG_CMSG_CLOEXEC);
     }},
};

template <size_t kCount>
void add_all(const Receiver& receiver, const Scenario (&scenarios)[kCount]) {
  for (const Scenario& scenario : scenarios)
    add_case(std::string("receiving.") + receiver.name + "." + scenario.name,
             [&receiver, &scenario] { scenario.body(Call(receiver)); });
}

}  // namespace

CASES(receiving) {
  for (const Receiver& receiver : kReceivers) {
    add_all(receiver, kScenarios);
    if (receiver.has_flags) add_all(receiver, kFlagScenarios);
  }
}

// ---- what only some of the calls have

CASE(receiving, recvfrom_leaves_no_address) {
  Pair pair;
  give(pair.client(), "x");
  sockaddr_storage from{};
  from.ss_family = 99;
  socklen_t length = sizeof from;
  char byte = 0;
  SEE(recvfrom(pair.server(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &length));
  NOTE(length);
  NOTE(static_cast<int>(from.ss_family));
}

CASE(receiving, recvfrom_with_an_address_of_no_length) {
  Pair pair;
  give(pair.client(), "abc");
  await_bytes(pair.server(), 3);
  sockaddr_storage from{};
  auto* const address = reinterpret_cast<sockaddr*>(&from);
  char byte = 0;
  SEE(recvfrom(pair.server(), &byte, 1, 0, address, nullptr));
  auto negative = static_cast<socklen_t>(-1);
  SEE(recvfrom(pair.server(), &byte, 1, 0, address, &negative));
  SEE(recvfrom(pair.server(), &byte, 1, 0, address, nullptr));
  SEE(recvfrom(pair.server(), &byte, 1, MSG_DONTWAIT, address, nullptr));
}

CASE(receiving, recvmsg_tells_the_flag_for_descriptors) {
  Pair pair;
  give(pair.client(), "abc");
  char data[8];
  iovec part{data, sizeof data};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  SEE(recvmsg(pair.server(), &message, MSG_CMSG_CLOEXEC));
  NOTE(message.msg_flags);
}

CASE(receiving, recvmsg_fills_its_header) {
  Pair pair;
  give(pair.client(), text(5));
  char data[8];
  iovec part{data, sizeof data};
  sockaddr_storage name{};
  char control[64];
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  message.msg_flags = -1;
  SEE(recvmsg(pair.server(), &message, 0));
  NOTE(message.msg_namelen);
  NOTE(message.msg_controllen);
  NOTE(message.msg_flags);
}

CASE(receiving, recvmsg_of_no_parts) {
  Pair pair;
  give(pair.client(), text(5));
  await_bytes(pair.server(), 5);
  msghdr message{};
  SEE(recvmsg(pair.server(), &message, 0));
  message.msg_iovlen = 2000;
  SEE(recvmsg(pair.server(), &message, 0));
  NOTE(take(pair.server(), 5));
}

CASE(receiving, readv_of_many_parts) {
  Pair pair;
  give(pair.client(), text(100));
  await_bytes(pair.server(), 100);
  char data[100];
  std::vector<iovec> parts(1025, iovec{nullptr, 0});
  volatile int negative = -1;  // the compiler would reject a constant
  for (size_t i = 0; i < 50; ++i) parts[i * 20] = {data + 2 * i, 2};
  SEE(readv(pair.server(), parts.data(), 1024));
  NOTE(digest(std::string(data, 100)));
  SEE(readv(pair.server(), parts.data(), 1025));
  SEE(readv(pair.server(), parts.data(), negative));
  SEE(readv(pair.server(), parts.data(), 0));
  parts[0].iov_len = SIZE_MAX;
  SEE(readv(pair.server(), parts.data(), 1));
}

CASE(receiving, recvmmsg_takes_several) {
  Pair pair;
  give(pair.client(), text(12));
  await_bytes(pair.server(), 12);
  char data[4][4];
  iovec parts[4];
  mmsghdr messages[4]{};
  for (int i = 0; i < 4; ++i) {
    parts[i] = {data[i], 4};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  SEE(recvmmsg(pair.server(), messages, 2, 0, nullptr));
  NOTE(messages[0].msg_len + messages[1].msg_len);
  SEE(recvmmsg(pair.server(), messages, 4, MSG_WAITFORONE, nullptr));
  NOTE(messages[0].msg_len);
  SEE(recvmmsg(pair.server(), messages, 4, MSG_DONTWAIT, nullptr));
  SEE(recvmmsg(pair.server(), messages, 0, MSG_DONTWAIT, nullptr));
  NOTE(std::string(data[0], 4) + std::string(data[1], 4));
}

CASE(receiving, recvmmsg_and_its_limit) {
  Pair pair;
  give(pair.client(), text(4));
  await_bytes(pair.server(), 4);
  const Later later(30, [&] { give(pair.client(), text(4)); });
  char data[2][4];
  iovec parts[2];
  mmsghdr messages[2]{};
  for (int i = 0; i < 2; ++i) {
    parts[i] = {data[i], 4};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  timespec limit{0, 1'000'000};  // only checked after each message
  SEE(recvmmsg(pair.server(), messages, 2, 0, &limit));
  timespec wrong{0, -1};
  SEE(recvmmsg(pair.server(), messages, 2, MSG_DONTWAIT, &wrong));
}

CASE(receiving, recvmmsg_and_the_end) {
  Pair pair;
  give(pair.client(), text(4));
  pair.close_client();
  await_end(pair.server());
  char data[3][4];
  iovec parts[3];
  mmsghdr messages[3]{};
  for (int i = 0; i < 3; ++i) {
    parts[i] = {data[i], 4};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  SEE(recvmmsg(pair.server(), messages, 3, 0, nullptr));
  NOTE(messages[1].msg_len);
}

}  // namespace conformance

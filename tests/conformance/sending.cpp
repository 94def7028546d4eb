// Every call that hands bytes to a stream.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
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

/// A call that sends. `flags` is 0 for calls that have none.
struct Sender {
  const char* name;
  bool has_flags;
  /// True if the call itself reads the bytes at the address that it is given.
  bool has_address;
  ssize_t (*call)(int fd, const void* data, size_t size, int flags);
};

std::array<iovec, 2> halves(const void* data, size_t size) {
  char* const start = static_cast<char*>(const_cast<void*>(data));
  return {iovec{start, size / 2}, iovec{start + size / 2, size - size / 2}};
}

/// Returns an unnamed file with these bytes.
int file_with(const void* data, size_t size) {
  const int file = memfd_create("conformance", MFD_CLOEXEC);
  if (write(file, data, size) != static_cast<ssize_t>(size)) std::abort();
  return file;
}

const Sender kSenders[] = {
    {"write", false, true,
     [](int fd, const void* data, size_t size, int) { return write(fd, data, size); }},
    {"writev", false, true,
     [](int fd, const void* data, size_t size, int) {
       const auto parts = halves(data, size);
       return writev(fd, parts.data(), 2);
     }},
    {"send", true, true,
     [](int fd, const void* data, size_t size, int flags) { return send(fd, data, size, flags); }},
    {"sendto", true, true,
     [](int fd, const void* data, size_t size, int flags) {
       return sendto(fd, data, size, flags, nullptr, 0);
     }},
    {"sendmsg", true, true,
     [](int fd, const void* data, size_t size, int flags) {
       auto parts = halves(data, size);
       msghdr message{};
       message.msg_iov = parts.data();
       message.msg_iovlen = parts.size();
       return sendmsg(fd, &message, flags);
     }},
    {"sendmmsg", true, true,
     [](int fd, const void* data, size_t size, int flags) -> ssize_t {
       auto parts = halves(data, size);
       mmsghdr message{};
       message.msg_hdr.msg_iov = parts.data();
       message.msg_hdr.msg_iovlen = parts.size();
       const int count = sendmmsg(fd, &message, 1, flags);
       return count == 1 ? static_cast<ssize_t>(message.msg_len) : count;
     }},
    {"sendfile", false, false,
     [](int fd, const void* data, size_t size, int) {
       const int file = file_with(data, size);
       off_t offset = 0;
       const ssize_t result = sendfile(fd, file, &offset, size);
       const int error = errno;
       close(file);
       errno = error;
       return result;
     }},
};

class Call {
 public:
  explicit Call(const Sender& sender) : sender_(sender) {}
  ssize_t operator()(int fd, const std::string& data, int flags = 0) const {
    return see("sends " + std::to_string(data.size()),
               [&] { return sender_.call(fd, data.data(), data.size(), flags); });
  }
  ssize_t raw(int fd, const void* data, size_t size, int flags = 0) const {
    return sender_.call(fd, data, size, flags);
  }
  bool has_address() const { return sender_.has_address; }

 private:
  const Sender& sender_;
};

using Body = void (*)(const Call& call);
struct Scenario {
  const char* name;
  Body body;
};

const Scenario kScenarios[] = {
    {"a_few_bytes",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "hello");
       NOTE(take(pair.server(), 5));
     }},
    {"in_order",
     [](const Call& call) {
       Pair pair;
       for (size_t i = 0; i < 20; ++i) call(pair.client(), text(i, i * 3));
       NOTE(take(pair.server(), 190));
     }},
    {"both_ways",
     [](const Call& call) {
       Pair pair;
       for (int i = 0; i < 5; ++i) {
         call(pair.client(), "there");
         NOTE(take(pair.server(), 5));
         call(pair.server(), "back");
         NOTE(take(pair.client(), 4));
       }
     }},
    {"many_bytes",
     [](const Call& call) {
       Pair pair;
       std::string got;
       {
         const Later later(0, [&] { got = take(pair.server(), 3'000'000); });
         call(pair.client(), text(3'000'000));
       }
       NOTE(digest(got));
     }},
    {"waits_for_room",
     [](const Call& call) {
       Pair pair;
       std::string got;
       size_t before = fill(pair);
       {
         const Later later(20, [&] { got = take(pair.server(), before + 200'000); });
         call(pair.client(), text(200'000));
       }
       NOTE(got.size() - before);
       NOTE(digest(got.substr(before)));
     }},
    {"full_nonblocking",
     [](const Call& call) {
       Pair pair(true);
       const size_t filled = fill(pair);
       NOTE(filled > 10'000);
       call(pair.client(), "one more");
       NOTE(take(pair.server(), filled).size() == filled);
       pollfd room{pair.client(), POLLOUT, 0};
       SEE(poll(&room, 1, 5000));
       call(pair.client(), "and more");
       NOTE(take(pair.server(), 8));
     }},
    {"nothing",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "");
       call(pair.client(), "x");
       call(pair.client(), "");
       NOTE(take(pair.server(), 1));
     }},
    {"no_descriptor",
     [](const Call& call) {
       call(-1, "x");
       Pair pair;
       const int fd = pair.client();
       pair.close_client();
       call(fd, "x");
       call(1 << 19, "x");
     }},
    {"no_address",
     [](const Call& call) {
       Pair pair;
       if (call.has_address()) SEE(call.raw(pair.client(), nullptr, 5));
       void* const bad = reinterpret_cast<void*>(0xffff'8000'0000'0000U);
       if (call.has_address()) SEE(call.raw(pair.client(), bad, 5));
       call(pair.client(), "good");
       NOTE(take(pair.server(), 4));
     }},
    {"after_own_shutdown",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       SEE(shutdown(pair.client(), SHUT_WR));
       call(pair.client(), "x");
       NOTE(signals.count());
       call(pair.client(), "x");
       NOTE(signals.count());
       call(pair.server(), "back");
       NOTE(take(pair.client(), 4));
     }},
    {"after_shutdown_both",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       SEE(shutdown(pair.client(), SHUT_RDWR));
       call(pair.client(), "x");
       NOTE(signals.count());
     }},
    {"nothing_after_own_shutdown",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       SEE(shutdown(pair.client(), SHUT_WR));
       call(pair.client(), "");
       NOTE(signals.count());
     }},
    {"to_one_that_has_half_closed",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_WR));
       await_end(pair.client());
       call(pair.client(), "still");
       NOTE(take(pair.server(), 5));
     }},
    {"to_one_that_does_not_read_any_more",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_RD));
       call(pair.client(), "heard");
       await_bytes(pair.server(), 5);
       NOTE(take(pair.server(), 5));
     }},
    {"to_one_that_has_closed",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       pair.close_server();
       await_end(pair.client());
       call(pair.client(), "x");
       pollfd end{pair.client(), 0, 0};
       NOTE(poll(&end, 1, 5000));  // the peer answers that byte with a reset
       call(pair.client(), "x");
       NOTE(signals.count());
       call(pair.client(), "x");
       NOTE(signals.count());
     }},
    {"after_a_reset",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       pair.reset_server();
       await_end(pair.client());
       call(pair.client(), "x");
       NOTE(signals.count());
       call(pair.client(), "x");
       NOTE(signals.count());
     }},
    {"waits_and_is_reset",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       fill(pair);
       const Later later(20, [&] { pair.reset_server(); });
       call(pair.client(), "x");
       NOTE(signals.count());
     }},
    {"waits_and_is_shut",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       fill(pair);
       const Later later(20, [&] { shutdown(pair.client(), SHUT_WR); });
       call(pair.client(), "x");
       NOTE(signals.count());
     }},
    {"time_is_up",
     [](const Call& call) {
       Pair pair;
       fill(pair);
       set_send_timeout(pair.client(), 30);
       call(pair.client(), "x");
     }},
    {"interrupted",
     [](const Call& call) {
       Pair pair;
       fill(pair);
       const Interruptions interruptions(false);
       call(pair.client(), "x");
     }},
    {"interrupted_and_restarted",
     [](const Call& call) {
       Pair pair;
       const size_t before = fill(pair);
       const Interruptions interruptions(true);
       std::string got;
       const Later later(60, [&] { got = take(pair.server(), before); });
       call(pair.client(), "at last");
     }},
    {"interrupted_with_a_limit",
     [](const Call& call) {
       Pair pair;
       fill(pair);
       set_send_timeout(pair.client(), 5000);
       const Interruptions interruptions(true);
       call(pair.client(), "x");
     }},
    {"not_connected",
     [](const Call& call) {
       const PipeSignals signals;
       const int fd = socket(AF_INET, SOCK_STREAM, 0);
       call(fd, "x");
       NOTE(signals.count());
       close(fd);
     }},
    {"listening",
     [](const Call& call) {
       const PipeSignals signals;
       sockaddr_storage address;
       socklen_t length = 0;
       const int fd = listen_loopback(address, length);
       call(fd, "x");
       NOTE(signals.count());
       close(fd);
     }},
    {"then_closes",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), text(50'000));
       pair.close_client();
       NOTE(digest(take(pair.server(), 100'000)));
     }},
    {"through_a_duplicate",
     [](const Call& call) {
       Pair pair;
       const int copy = dup(pair.client());
       call(copy, "one ");
       pair.close_client();
       call(copy, "two");
       close(copy);
       NOTE(take(pair.server(), 20));
     }},
};

const Scenario kFlagScenarios[] = {
    {"full_dontwait",
     [](const Call& call) {
       Pair pair;
       fill(pair);
       call(pair.client(), "x", MSG_DONTWAIT);
     }},
    {"nosignal",
     [](const Call& call) {
       Pair pair;
       const PipeSignals signals;
       SEE(shutdown(pair.client(), SHUT_WR));
       call(pair.client(), "x", MSG_NOSIGNAL);
       NOTE(signals.count());
     }},
    {"more",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "one ", MSG_MORE);
       call(pair.client(), "two ", MSG_MORE);
       call(pair.client(), "three");
       NOTE(take(pair.server(), 13));
     }},
    {"more_and_nothing_else",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "left", MSG_MORE);
       NOTE(take(pair.server(), 4));
     }},
    {"urgent",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "a");
       call(pair.client(), "b!", MSG_OOB);
       call(pair.client(), "c");
       NOTE(take(pair.server(), 3));
     }},
    {"eor_and_confirm",
     [](const Call& call) {
       Pair pair;
       call(pair.client(), "x", MSG_EOR);
       call(pair.client(), "y", MSG_CONFIRM);
       NOTE(take(pair.server(), 2));
     }},
};

template <size_t kCount>
void add_all(const Sender& sender, const Scenario (&scenarios)[kCount]) {
  for (const Scenario& scenario : scenarios)
    add_case(std::string("sending.") + sender.name + "." + scenario.name,
             [&sender, &scenario] { scenario.body(Call(sender)); });
}

}  // namespace

CASES(sending) {
  for (const Sender& sender : kSenders) {
    add_all(sender, kScenarios);
    if (sender.has_flags) add_all(sender, kFlagScenarios);
  }
}

// ---- what only some of the calls have

CASE(sending, sendto_with_an_address) {
  Pair pair;
  sockaddr_storage address{};
  address.ss_family = AF_INET;
  SEE(sendto(pair.client(), "x", 1, 0, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  NOTE(take(pair.server(), 1));
}

CASE(sending, sendmsg_of_no_parts) {
  Pair pair;
  msghdr message{};
  SEE(sendmsg(pair.client(), &message, 0));
  message.msg_iovlen = 2000;
  SEE(sendmsg(pair.client(), &message, 0));
  SEE(sendmsg(pair.client(), nullptr, 0));
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(sending, sendmsg_with_an_unknown_control_message) {
  Pair pair;
  char control[CMSG_SPACE(sizeof(int))]{};
  iovec part{control, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = 12345;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  SEE(sendmsg(pair.client(), &message, 0));
  give(pair.client(), "y");
  NOTE(take(pair.server(), 1));
}

CASE(sending, writev_of_many_parts) {
  Pair pair;
  const std::string data = text(100);
  std::vector<iovec> parts(1025, iovec{nullptr, 0});
  volatile int negative = -1;  // the compiler would reject a constant
  for (size_t i = 0; i < 50; ++i) parts[i * 20] = {const_cast<char*>(data.data()) + 2 * i, 2};
  SEE(writev(pair.client(), parts.data(), 1024));
  NOTE(digest(take(pair.server(), 100)));
  SEE(writev(pair.client(), parts.data(), 1025));
  SEE(writev(pair.client(), parts.data(), negative));
  SEE(writev(pair.client(), parts.data(), 0));
  const iovec* volatile nowhere = nullptr;
  SEE(writev(pair.client(), nowhere, 2));
}

CASE(sending, writev_with_a_bad_part_behind_a_good_one) {
  Pair pair;
  char good[] = "good";
  const iovec parts[2] = {{good, 4}, {nullptr, 4}};
  SEE(writev(pair.client(), parts, 2));
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(sending, sendmmsg_sends_several) {
  Pair pair;
  std::string data = text(12);
  iovec parts[3];
  mmsghdr messages[3]{};
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = {data.data() + 4 * i, 4};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  SEE(sendmmsg(pair.client(), messages, 3, 0));
  NOTE(messages[0].msg_len + messages[1].msg_len + messages[2].msg_len);
  NOTE(take(pair.server(), 12));
  SEE(sendmmsg(pair.client(), messages, 0, 0));
}

// An end that closes reads no more, and does not call its peer back to the engine, where there
// would be room.
CASE(sending, waits_on_the_kernel_and_is_reset) {
  for (int i = 0; i < 20; ++i) {
    Pair pair;
    forget(pair.client());
    forget(pair.server());
    move_down(pair.client());
    fill(pair);
    const Later later(5, [&] { pair.reset_server(); });
    SEE(send(pair.client(), "x", 1, MSG_NOSIGNAL));
  }
}

CASE(sending, sendfile_moves_the_offset) {
  Pair pair;
  const std::string data = text(1000);
  const int file = file_with(data.data(), data.size());
  off_t offset = 10;
  SEE(sendfile(pair.client(), file, &offset, 20));
  NOTE(offset);
  NOTE(lseek(file, 0, SEEK_CUR));
  NOTE(lseek(file, 5, SEEK_SET));
  SEE(sendfile(pair.client(), file, nullptr, 20));
  NOTE(lseek(file, 0, SEEK_CUR));
  SEE(sendfile(pair.client(), file, nullptr, 10'000));
  SEE(sendfile(pair.client(), file, nullptr, 10'000));
  NOTE(digest(take(pair.server(), 20 + 995)));
  close(file);
}

CASE(sending, sendfile_out_of_what_it_cannot_read) {
  Pair pair;
  Pair other;
  off_t offset = 0;
  SEE(sendfile(pair.client(), other.client(), &offset, 20));
  SEE(sendfile(pair.client(), -1, &offset, 20));
  const int file = file_with("abc", 3);
  offset = -5;
  SEE(sendfile(pair.client(), file, &offset, 20));
  offset = 100;
  SEE(sendfile(pair.client(), file, &offset, 20));
  const int unreadable = open("/dev/null", O_WRONLY);
  SEE(sendfile(pair.client(), unreadable, nullptr, 20));
  close(unreadable);
  close(file);
}

CASE(sending, sendfile_full_nonblocking) {
  Pair pair(true);
  const std::string data = text(100'000);
  const int file = file_with(data.data(), data.size());
  const size_t filled = fill(pair);
  off_t offset = 0;
  SEE(sendfile(pair.client(), file, &offset, data.size()));
  NOTE(offset);
  NOTE(take(pair.server(), filled).size() == filled);
  close(file);
}

CASE(sending, sendfile_of_a_large_file) {
  Pair pair;
  const std::string data = text(2'000'000);
  const int file = file_with(data.data(), data.size());
  std::string got;
  {
    const Later later(0, [&] { got = take(pair.server(), data.size()); });
    off_t offset = 0;
    SEE(sendfile(pair.client(), file, &offset, data.size()));
    NOTE(offset);
  }
  NOTE(digest(got));
  close(file);
}

}  // namespace conformance

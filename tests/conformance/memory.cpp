// The program's memory where it is missing, may not be used, or is slow to arrive.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

constexpr size_t kPage = 4096;

/// Two pages, the second of which is faulty.
class Pages {
 public:
  enum class Kind { none, read_only, cut };
  explicit Pages(Kind kind) {
    int file = -1;
    if (kind == Kind::cut) {
      file = memfd_create("pages", MFD_CLOEXEC);
      if (file < 0 || ftruncate(file, 2 * kPage) != 0) std::abort();
    }
    void* const memory = mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE,
                              file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) std::abort();
    memory_ = static_cast<char*>(memory);
    std::memset(memory_, 'g', 2 * kPage);
    if (kind == Kind::none) mprotect(bad(), kPage, PROT_NONE);
    if (kind == Kind::read_only) mprotect(bad(), kPage, PROT_READ);
    if (kind == Kind::cut && ftruncate(file, kPage) != 0) std::abort();
    if (file >= 0) close(file);
  }
  ~Pages() { munmap(memory_, 2 * kPage); }
  Pages(const Pages&) = delete;
  char* good() const { return memory_; }
  char* bad() const { return memory_ + kPage; }

 private:
  char* memory_;
};

/// Hides from the compiler a value that it would warn about.
template <typename T>
T unseen(T value) {
  asm("" : "+r"(value));
  return value;
}

struct Sender {
  const char* name;
  ssize_t (*call)(int fd, const void* data, size_t size);
};

msghdr message_of(iovec& part) {
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return message;
}

const Sender kSenders[] = {
    {"write", [](int fd, const void* data, size_t size) { return write(fd, data, size); }},
    {"send", [](int fd, const void* data, size_t size) { return send(fd, data, size, 0); }},
    {"writev",
     [](int fd, const void* data, size_t size) {
       const iovec part{const_cast<void*>(data), size};
       return writev(fd, &part, 1);
     }},
    {"pwritev2",
     [](int fd, const void* data, size_t size) {
       const iovec part{const_cast<void*>(data), size};
       return pwritev2(fd, &part, 1, -1, 0);
     }},
    {"sendmsg",
     [](int fd, const void* data, size_t size) {
       iovec part{const_cast<void*>(data), size};
       const msghdr message = message_of(part);
       return sendmsg(fd, &message, 0);
     }},
    {"sendmmsg",
     [](int fd, const void* data, size_t size) -> ssize_t {
       iovec part{const_cast<void*>(data), size};
       mmsghdr message{message_of(part), 0};
       const int count = sendmmsg(fd, &message, 1, 0);
       return count == 1 ? static_cast<ssize_t>(message.msg_len) : count;
     }},
};

struct Receiver {
  const char* name;
  ssize_t (*call)(int fd, void* data, size_t size);
};

const Receiver kReceivers[] = {
    {"read", [](int fd, void* data, size_t size) { return read(fd, data, size); }},
    {"recv", [](int fd, void* data, size_t size) { return recv(fd, data, size, 0); }},
    {"peek", [](int fd, void* data, size_t size) { return recv(fd, data, size, MSG_PEEK); }},
    {"recvfrom",
     [](int fd, void* data, size_t size) { return recvfrom(fd, data, size, 0, nullptr, nullptr); }},
    {"readv",
     [](int fd, void* data, size_t size) {
       const iovec part{data, size};
       return readv(fd, &part, 1);
     }},
    {"preadv2",
     [](int fd, void* data, size_t size) {
       const iovec part{data, size};
       return preadv2(fd, &part, 1, -1, 0);
     }},
    {"recvmsg",
     [](int fd, void* data, size_t size) {
       iovec part{data, size};
       msghdr message = message_of(part);
       return recvmsg(fd, &message, 0);
     }},
    {"recvmmsg",
     [](int fd, void* data, size_t size) -> ssize_t {
       iovec part{data, size};
       mmsghdr message{message_of(part), 0};
       const int count = recvmmsg(fd, &message, 1, 0, nullptr);
       return count == 1 ? static_cast<ssize_t>(message.msg_len) : count;
     }},
};

/// Notes that the stream still works in both directions.
void see_that_it_goes_on(const Pair& pair) {
  give(pair.client(), "on");
  await_bytes(pair.server(), 2);
  NOTE(take(pair.server(), 2));
  give(pair.server(), "and back");
  await_bytes(pair.client(), 8);
  NOTE(take(pair.client(), 8));
}

void sends_from_bad_memory(const Sender& sender, Pages::Kind kind) {
  Pair pair;
  const Pages pages(kind);
  for (const size_t size : {size_t{1}, size_t{7}, size_t{100}, kPage})
    SEE(sender.call(pair.client(), pages.bad(), size));
  SEE(sender.call(pair.client(), pages.bad() - 3, 6));  // the last bytes are missing
  see_that_it_goes_on(pair);
  SEE(sender.call(pair.client(), pages.good(), 10));
  await_bytes(pair.server(), 10);
  NOTE(take(pair.server(), 10));
}

void receives_into_bad_memory(const Receiver& receiver, Pages::Kind kind) {
  Pair pair;
  const Pages pages(kind);
  give(pair.client(), text(300));
  await_bytes(pair.server(), 300);
  for (const size_t size : {size_t{1}, size_t{7}, size_t{100}, size_t{300}})
    SEE(receiver.call(pair.server(), pages.bad(), size));
  SEE(receiver.call(pair.server(), pages.bad() - 3, 6));
  NOTE(take(pair.server(), 300) == text(300));  // nothing is lost
  see_that_it_goes_on(pair);
}

template <typename Body>
void in_thread_that_blocks_all_signals(Body body) {
  std::thread([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    body();
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    NOTE(sigismember(&now, SIGSEGV));
    NOTE(sigismember(&now, SIGBUS));
  }).join();
}

/// A signal action that a program installs, for the duration of a case.
class Action {
 public:
  Action(int number, void (*handler)(int), int flags, bool full_mask = false) : number_(number) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    if (full_mask) sigfillset(&action.sa_mask);
    sigaction(number, &action, &before_);
  }
  ~Action() { sigaction(number_, &before_, nullptr); }
  Action(const Action&) = delete;

 private:
  int number_;
  struct sigaction before_ {};
};

volatile int g_handled = 0;
sigjmp_buf g_jump;
int g_fd = -1;
const void* g_bad = nullptr;
ssize_t g_result = 0;
int g_error = 0;

void count_and_jump(int) {
  g_handled = g_handled + 1;
  siglongjmp(g_jump, 1);
}

void send_bad_in_handler(int) {
  g_result = send(g_fd, g_bad, 100, 0);
  g_error = errno;
}

char read_byte(const volatile char* at) {
  return *at;
}

/// Returns how a child ends that runs `body`.
template <typename Body>
std::string end_of(Body body) {
  const pid_t child = fork_quietly();
  if (child == 0) {
    alarm(20);
    body();
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "status " + std::to_string(WEXITSTATUS(status));
}

/// A page that arrives when come() is called. Where userfaultfd(2) is not available, the page is
/// there from the start.
class SlowPage {
 public:
  /// Puts the slow page in the middle of `pages` pages.
  explicit SlowPage(size_t pages = 1) : pages_(pages) {
    void* const memory =
        mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    all_ = static_cast<char*>(memory);
    memory_ = all_ + pages / 2 * kPage;
    fd_ = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register range{};
    range.range = {reinterpret_cast<uintptr_t>(memory_), kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (fd_ < 0 || ioctl(fd_, UFFDIO_API, &api) != 0 || ioctl(fd_, UFFDIO_REGISTER, &range) != 0)
      std::memset(memory_, 's', kPage);
  }
  ~SlowPage() {
    munmap(all_, pages_ * kPage);
    if (fd_ >= 0) close(fd_);
  }
  SlowPage(const SlowPage&) = delete;
  char* data() const { return all_; }
  /// Waits until somebody needs the page. (poll(2) waits only on a userfaultfd that is O_NONBLOCK.)
  void await_use() const {
    pollfd event{fd_, POLLIN, 0};
    poll(&event, 1, fd_ >= 0 ? 10'000 : 0);
  }
  void come() const {
    alignas(kPage) static char page[kPage];
    std::memset(page, 's', sizeof page);
    uffdio_copy copy{};
    copy.dst = reinterpret_cast<uintptr_t>(memory_);
    copy.src = reinterpret_cast<uintptr_t>(page);
    copy.len = kPage;
    if (fd_ >= 0) ioctl(fd_, UFFDIO_COPY, &copy);
  }
  void go() const { madvise(memory_, kPage, MADV_DONTNEED); }

 private:
  size_t pages_;
  char* all_;
  char* memory_;
  int fd_ = -1;
};

/// Exchanges more than a ring holds, so nothing may be left in the ring.
size_t exchange_much(const Pair& pair) {
  const std::string data = text(32 * 1024);
  size_t done = 0;
  for (int i = 0; i < 300; ++i) {
    give(pair.client(), data);
    done += take(pair.server(), data.size()).size();
    give(pair.server(), "x");
    done += take(pair.client(), 1).size();
  }
  return done;
}

}  // namespace

CASES(bad_memory) {
  const std::pair<const char*, Pages::Kind> kinds[] = {{"none", Pages::Kind::none},
                                                       {"cut", Pages::Kind::cut},
                                                       {"read_only", Pages::Kind::read_only}};
  for (const auto& one : kinds) {
    const std::string kind_name = one.first;
    const Pages::Kind kind = one.second;
    for (const Sender& sender : kSenders) {
      if (kind == Pages::Kind::read_only) continue;
      add_case("memory." + std::string(sender.name) + ".bad_" + kind_name,
               [&sender, kind] { sends_from_bad_memory(sender, kind); });
    }
    for (const Receiver& receiver : kReceivers)
      add_case("memory." + std::string(receiver.name) + ".bad_" + kind_name,
               [&receiver, kind] { receives_into_bad_memory(receiver, kind); });
  }
}

// The memory that tells a wait what to wait for, not the memory where it puts what it has found.
CASE(memory, what_is_waited_for) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  const int inner = epoll_create1(0);
  const int outer = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  SEE(epoll_ctl(inner, EPOLL_CTL_ADD, pair.client(), &event));
  auto* const bad = reinterpret_cast<epoll_event*>(pages.bad());
  SEE(epoll_ctl(outer, EPOLL_CTL_ADD, inner, bad));
  SEE(epoll_ctl(outer, EPOLL_CTL_ADD, inner, nullptr));
  SEE(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
  SEE(epoll_ctl(outer, EPOLL_CTL_MOD, inner, bad));
  SEE(epoll_ctl(inner, EPOLL_CTL_MOD, pair.client(), bad));
  SEE(epoll_ctl(outer, EPOLL_CTL_DEL, inner, bad));
  for (const int set : {inner, outer}) close(set);

  fd_set reads;
  FD_ZERO(&reads);
  FD_SET(pair.client(), &reads);
  timespec now{};
  SEE(syscall(SYS_pselect6, pair.client() + 1, &reads, nullptr, nullptr, &now, pages.bad()));
  FD_SET(pair.client(), &reads);
  SEE(syscall(SYS_pselect6, pair.client() + 1, &reads, nullptr, nullptr, pages.bad(), nullptr));
  FD_SET(pair.client(), &reads);
  SEE(syscall(SYS_pselect6, pair.client() + 1, &reads, nullptr, nullptr, &now, nullptr));
  pollfd polled{pair.client(), POLLIN, 0};
  SEE(syscall(SYS_ppoll, &polled, 1, pages.bad(), nullptr, 8));
  SEE(syscall(SYS_ppoll, &polled, 1, &now, pages.bad(), 8));
  SEE(syscall(SYS_ppoll, pages.bad(), 1, &now, nullptr, 8));
#ifdef SYS_select
  FD_SET(pair.client(), &reads);
  SEE(syscall(SYS_select, pair.client() + 1, &reads, nullptr, nullptr, pages.bad()));
#endif
  see_that_it_goes_on(pair);
}

CASE(memory, blocked_signals) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  give(pair.client(), "there");
  await_bytes(pair.server(), 5);
  in_thread_that_blocks_all_signals([&] {
    SEE(send(pair.client(), pages.bad(), 100, 0));
    SEE(send(pair.client(), pages.bad(), 4000, 0));
    SEE(recv(pair.server(), pages.bad(), 100, 0));
  });
  // And again in a thread that does not block them.
  SEE(send(pair.client(), pages.bad(), 100, 0));
  NOTE(take(pair.server(), 5));
  see_that_it_goes_on(pair);
}

CASE(memory, signals_blocked_by_number) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  std::thread([&] {
    SEE(send(pair.client(), pages.bad(), 100, 0));
    const uint64_t all = ~uint64_t{0};
    SEE(syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, nullptr, sizeof all));
    SEE(send(pair.client(), pages.bad(), 100, 0));
    SEE(send(pair.client(), pages.bad(), 4000, 0));
  }).join();
  see_that_it_goes_on(pair);
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static int ignore(int number) {
  return sigignore(number);
}
#pragma GCC diagnostic pop

CASE(memory, ignored_faults) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  struct sigaction before {};
  sigaction(SIGSEGV, nullptr, &before);
  SEE(send(pair.client(), pages.bad(), 100, 0));
  SEE(ignore(SIGSEGV));
  SEE(send(pair.client(), pages.bad(), 100, 0));
  struct sigaction now {};
  SEE(sigaction(SIGSEGV, &before, &now));
  NOTE(now.sa_handler == SIG_IGN);
  SEE(send(pair.client(), pages.bad(), 100, 0));
  NOTE(end_of([&] { read_byte(pages.bad()); }));
  see_that_it_goes_on(pair);
}

CASE(memory, ignored_faults_when_no_program_has_begun) {
  const Pages pages(Pages::Kind::none);
  struct sigaction before {};
  sigaction(SIGSEGV, nullptr, &before);
  { const Pair begins; }
  SEE(ignore(SIGSEGV));
  char* const words[] = {nullptr};
  SEE(execv("/nowhere", words));
  SEE(syscall(SYS_execve, "/nowhere", words, words));
  {
    Pair pair;  // earlier streams are on the kernel for a while
    SEE(send(pair.client(), pages.bad(), 100, 0));
    see_that_it_goes_on(pair);
  }
  SEE(sigaction(SIGSEGV, &before, nullptr));
}

CASE(memory, a_handler_that_blocks_all_signals) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  g_fd = pair.client();
  g_bad = pages.bad();
  SEE(send(g_fd, g_bad, 100, 0));
  {
    const Action action(SIGUSR1, send_bad_in_handler, 0, true);
    raise(SIGUSR1);
    errno = 0;
    NOTE(g_result);
    NOTE(errno_name(g_error));
  }
  SEE(send(g_fd, g_bad, 100, 0));
  see_that_it_goes_on(pair);
}

CASE(memory, faults_of_the_program_are_its_own) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  g_handled = 0;
  {
    const Action action(SIGSEGV, count_and_jump, SA_RESTART);
    SEE(send(pair.client(), pages.bad(), 100, 0));
    NOTE(g_handled);
    if (sigsetjmp(g_jump, 1) == 0) read_byte(pages.bad());
    NOTE(g_handled);
    if (sigsetjmp(g_jump, 1) == 0) raise(SIGSEGV);
    NOTE(g_handled);
    SEE(send(pair.client(), pages.bad(), 100, 0));
    struct sigaction shown {};
    SEE(sigaction(SIGSEGV, nullptr, &shown));
    NOTE(shown.sa_handler == count_and_jump);
    NOTE(shown.sa_flags & (SA_RESTART | SA_SIGINFO | SA_ONSTACK | SA_NODEFER));
    NOTE(sigismember(&shown.sa_mask, SIGUSR1));
    NOTE(signal(SIGSEGV, SIG_DFL) == count_and_jump);
    NOTE(signal(SIGSEGV, count_and_jump) == SIG_DFL);
    NOTE(signal(SIGSEGV, SIG_IGN) == count_and_jump);
    NOTE(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    SEE(sigaction(SIGBUS, nullptr, &shown));
    NOTE(shown.sa_handler == SIG_DFL);
  }
  see_that_it_goes_on(pair);
}

CASE(memory, ends_by_faults) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  SEE(send(pair.client(), pages.bad(), 100, 0));
  NOTE(end_of([&] { read_byte(pages.bad()); }));
  NOTE(end_of([] { raise(SIGSEGV); }));
  NOTE(end_of([] { kill(getpid(), SIGBUS); }));
  NOTE(end_of([&] {
    signal(SIGSEGV, SIG_IGN);
    raise(SIGSEGV);
  }));
  NOTE(end_of([&] {
    signal(SIGSEGV, SIG_IGN);
    read_byte(pages.bad());
  }));
  NOTE(end_of([&] {
    const Action action(
        SIGSEGV, [](int) {}, static_cast<int>(SA_RESETHAND));
    read_byte(pages.bad());
  }));
  NOTE(end_of([&] {
    const Action action(
        SIGSEGV, [](int) { std::_Exit(7); }, 0);
    read_byte(pages.bad());
  }));
  NOTE(end_of([&] {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    const Action action(
        SIGSEGV, [](int) { std::_Exit(7); }, 0);
    read_byte(pages.bad());
  }));
  see_that_it_goes_on(pair);
}

CASE(memory, a_long_send_of_which_the_end_is_missing) {
  Pair pair;
  constexpr size_t kGood = 256 * kPage;
  void* const memory =
      mmap(nullptr, kGood + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* const data = static_cast<char*>(memory);
  const std::string sent = text(kGood);
  std::memcpy(data, sent.data(), kGood);
  mprotect(data + kGood, kPage, PROT_NONE);
  std::string received;
  std::thread reader([&] { received = take(pair.server(), kGood + 10); });
  const ssize_t result = send(pair.client(), data, kGood + kPage, 0);
  // The result depends on how the kernel divides the bytes.
  NOTE(result > static_cast<ssize_t>(kGood - 64 * 1024) && result <= static_cast<ssize_t>(kGood));
  SEE(shutdown(pair.client(), SHUT_WR));
  reader.join();
  NOTE(received == sent.substr(0, static_cast<size_t>(result)));
  munmap(memory, kGood + kPage);
}

CASE(memory, arguments_of_sends_and_receives) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  void* const bad = pages.bad();
  const int client = pair.client();
  const int server = pair.server();
  give(client, "there");
  await_bytes(server, 5);
  SEE(writev(client, static_cast<iovec*>(bad), 1));
  SEE(writev(client, unseen<iovec*>(nullptr), 1));
  SEE(writev(client, static_cast<iovec*>(bad), unseen(2000)));
  SEE(readv(server, static_cast<iovec*>(bad), 1));
  SEE(readv(server, static_cast<iovec*>(bad), unseen(-1)));
  SEE(sendmsg(client, static_cast<msghdr*>(bad), 0));
  SEE(recvmsg(server, static_cast<msghdr*>(bad), 0));
  SEE(recvmsg(server, nullptr, 0));
  msghdr message{};
  message.msg_iov = static_cast<iovec*>(bad);
  message.msg_iovlen = 1;
  SEE(sendmsg(client, &message, 0));
  SEE(recvmsg(server, &message, 0));
  iovec part{pages.good(), 3};
  message = message_of(part);
  message.msg_control = bad;
  message.msg_controllen = 32;
  SEE(sendmsg(client, &message, 0));
  message = message_of(part);
  message.msg_name = bad;
  message.msg_namelen = 16;
  SEE(sendmsg(client, &message, 0));
  SEE(sendmmsg(client, static_cast<mmsghdr*>(bad), 1, 0));
  SEE(sendmmsg(client, nullptr, 1, 0));
  SEE(recvmmsg(server, static_cast<mmsghdr*>(bad), 1, 0, nullptr));
  mmsghdr one{message_of(part), 0};
  SEE(recvmmsg(server, &one, 1, 0, static_cast<timespec*>(bad)));
  SEE(sendto(client, pages.good(), 3, 0, static_cast<sockaddr*>(bad), 16));
  const int file = memfd_create("file", MFD_CLOEXEC);
  SEE(write(file, "of a file", 9));
  SEE(sendfile(client, file, static_cast<off_t*>(bad), 9));
  close(file);
  SEE(ioctl(server, FIONREAD, bad));
  SEE(ioctl(server, FIONBIO, bad));
  socklen_t length = sizeof(int);
  SEE(getsockopt(server, SOL_SOCKET, SO_ERROR, bad, &length));
  SEE(getsockopt(server, SOL_SOCKET, SO_ERROR, pages.good(), static_cast<socklen_t*>(bad)));
  SEE(setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, bad, sizeof(timeval)));
  NOTE(take(server, 5));
  see_that_it_goes_on(pair);
}

CASE(memory, arguments_of_waits) {
  Pair pair;
  const Pages pages(Pages::Kind::none);
  void* const bad = pages.bad();
  give(pair.client(), "there");
  await_bytes(pair.server(), 5);
  // As a rule, libc reads the times in the program itself.
  SEE(poll(unseen<pollfd*>(nullptr), 1, 1));
  SEE(poll(unseen<pollfd*>(nullptr), unseen(~nfds_t{0}), 1));
  SEE(poll(static_cast<pollfd*>(bad), 1, 1));
  auto* const last = reinterpret_cast<pollfd*>(pages.bad()) - 1;
  *last = {pair.server(), POLLIN, 0};
  SEE(poll(last, 1, 1));
  SEE(poll(last, 2, 1));
  SEE(ppoll(last, 1, nullptr, static_cast<sigset_t*>(bad)));
  fd_set set;
  FD_ZERO(&set);
  FD_SET(pair.server(), &set);
  timeval time{0, 1000};
  SEE(select(pair.server() + 1, static_cast<fd_set*>(bad), nullptr, nullptr, &time));
  SEE(select(pair.server() + 1, &set, static_cast<fd_set*>(bad), nullptr, &time));
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  SEE(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.server(), static_cast<epoll_event*>(bad)));
  epoll_event event{EPOLLIN, {.u64 = 5}};
  SEE(epoll_ctl(epoll, EPOLL_CTL_ADD, pair.server(), &event));
  SEE(epoll_wait(epoll, static_cast<epoll_event*>(bad), 1, 1000));
  SEE(epoll_wait(epoll, &event, 1, 1000));
  SEE(epoll_pwait2(epoll, &event, 1, static_cast<timespec*>(bad), nullptr));
  close(epoll);
  const Pages read_only(Pages::Kind::read_only);
  SEE(poll(reinterpret_cast<pollfd*>(read_only.bad()), 1, 1));
  NOTE(take(pair.server(), 5));
  see_that_it_goes_on(pair);
}

CASE(memory, a_slow_page_stops_no_other_stream_sending) {
  Pair slow;
  Pair other;
  const SlowPage page;
  ssize_t sent = 0;
  std::thread sender([&] { sent = send(slow.client(), page.data(), 100, 0); });
  page.await_use();
  NOTE(exchange_much(other));
  page.come();
  sender.join();
  NOTE(sent);
  await_bytes(slow.server(), 100);
  NOTE(take(slow.server(), 100));
}

CASE(memory, a_slow_page_stops_no_other_stream_receiving) {
  Pair slow;
  Pair other;
  const SlowPage page;
  give(slow.client(), text(100));
  await_bytes(slow.server(), 100);
  ssize_t received = 0;
  std::thread receiver([&] { received = recv(slow.server(), page.data(), 100, 0); });
  page.await_use();
  NOTE(exchange_much(other));
  page.come();
  receiver.join();
  NOTE(received);
  NOTE(std::string(page.data(), 100) == text(100));
}

CASE(memory, a_page_that_was_there_a_moment_ago_stops_no_other_stream) {
  constexpr size_t kSize = 8 * kPage;
  constexpr size_t kTimes = 3;
  Pair slow;
  Pair other;
  const SlowPage page(kSize / kPage);
  page.come();
  give(slow.client(), text(kTimes * kSize));
  await_bytes(slow.server(), kTimes * kSize);
  ssize_t received[kTimes] = {};
  std::thread receiver([&] {
    // Receives into the same memory again and again.
    for (ssize_t& one : received) {
      if (&one == &received[kTimes - 1]) page.go();
      one = recv(slow.server(), page.data(), kSize, MSG_WAITALL);
    }
  });
  page.await_use();
  NOTE(exchange_much(other));
  page.come();
  receiver.join();
  for (const ssize_t one : received) NOTE(one);
  NOTE(std::string(page.data(), kSize) == text(kTimes * kSize).substr((kTimes - 1) * kSize));
}

}  // namespace conformance

// Threads that are cancelled in a call on a stream (pthreads(7)): the call is over, and everything
// else goes on.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <string>
#include <thread>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

using namespace std::chrono_literals;

/// What the thread uses. Has no objects that the thread would have to destroy.
struct Ends {
  int client;
  int server;
  int set;
  int idle_set;
  int file;
  int listener;  // its queue is full
  int idle_listener;
  int connecting;
  int pipe;
};

struct Way {
  const char* name;
  void (*call)(const Ends& ends);
};

std::array<char, 64 * 1024> g_bytes;

constexpr Way kWays[] = {
    {"recv", [](const Ends& ends) { recv(ends.server, g_bytes.data(), 100, 0); }},
    {"read", [](const Ends& ends) { (void)!read(ends.server, g_bytes.data(), 100); }},
    {"recvmsg",
     [](const Ends& ends) {
       iovec part{g_bytes.data(), 100};
       msghdr message{};
       message.msg_iov = &part;
       message.msg_iovlen = 1;
       recvmsg(ends.server, &message, MSG_WAITALL);
     }},
    {"readv",
     [](const Ends& ends) {
       const iovec parts[] = {{g_bytes.data(), 10}, {g_bytes.data() + 10, 10}};
       readv(ends.server, parts, 2);
     }},
    {"poll",
     [](const Ends& ends) {
       pollfd there{ends.server, POLLIN, 0};
       poll(&there, 1, -1);
     }},
    {"select",
     [](const Ends& ends) {
       fd_set reads;
       FD_ZERO(&reads);
       FD_SET(ends.server, &reads);
       select(ends.server + 1, &reads, nullptr, nullptr, nullptr);
     }},
    {"epoll_wait",
     [](const Ends& ends) {
       epoll_event event;
       epoll_wait(ends.set, &event, 1, -1);
     }},
    {"send",
     [](const Ends& ends) { send(ends.client, g_bytes.data(), g_bytes.size(), MSG_NOSIGNAL); }},
    {"writev",
     [](const Ends& ends) {
       const iovec parts[] = {{g_bytes.data(), 20'000}, {g_bytes.data(), 20'000}};
       writev(ends.client, parts, 2);
     }},
    {"sendmsg",
     [](const Ends& ends) {
       iovec part{g_bytes.data(), g_bytes.size()};
       msghdr message{};
       message.msg_iov = &part;
       message.msg_iovlen = 1;
       sendmsg(ends.client, &message, MSG_NOSIGNAL);
     }},
    // sendfile() is not a cancellation point, but the call after it is.
    {"sendfile",
     [](const Ends& ends) {
       off_t from = 0;
       sendfile(ends.client, ends.file, &from, 1);
       char byte = 0;
       recv(ends.server, &byte, 1, 0);
     }},
    {"recvmmsg",
     [](const Ends& ends) {
       iovec part{g_bytes.data(), 100};
       mmsghdr message{};
       message.msg_hdr.msg_iov = &part;
       message.msg_hdr.msg_iovlen = 1;
       recvmmsg(ends.server, &message, 1, 0, nullptr);
     }},
    {"ppoll",
     [](const Ends& ends) {
       pollfd there{ends.server, POLLIN, 0};
       const timespec time{100, 0};
       ppoll(&there, 1, &time, nullptr);
     }},
    {"recvfrom",
     [](const Ends& ends) { recvfrom(ends.server, g_bytes.data(), 100, 0, nullptr, nullptr); }},
    {"write", [](const Ends& ends) { (void)!write(ends.client, g_bytes.data(), g_bytes.size()); }},
    {"sendto",
     [](const Ends& ends) {
       sendto(ends.client, g_bytes.data(), g_bytes.size(), MSG_NOSIGNAL, nullptr, 0);
     }},
    {"sendmmsg",
     [](const Ends& ends) {
       iovec part{g_bytes.data(), g_bytes.size()};
       mmsghdr message{};
       message.msg_hdr.msg_iov = &part;
       message.msg_hdr.msg_iovlen = 1;
       sendmmsg(ends.client, &message, 1, MSG_NOSIGNAL);
     }},
    {"pselect",
     [](const Ends& ends) {
       fd_set reads;
       FD_ZERO(&reads);
       FD_SET(ends.server, &reads);
       const timespec time{100, 0};
       pselect(ends.server + 1, &reads, nullptr, nullptr, &time, nullptr);
     }},
    {"epoll_pwait",
     [](const Ends& ends) {
       epoll_event event;
       epoll_pwait(ends.set, &event, 1, 100'000, nullptr);
     }},
    {"splice", [](const Ends& ends) { splice(ends.server, nullptr, ends.pipe, nullptr, 100, 0); }},
    // Waits in a set without streams.
    {"epoll_wait_in_the_kernel",
     [](const Ends& ends) {
       epoll_event event;
       epoll_wait(ends.idle_set, &event, 1, -1);
     }},
    {"connect",
     [](const Ends& ends) {
       sockaddr_storage address{};
       socklen_t length = sizeof address;
       getsockname(ends.listener, reinterpret_cast<sockaddr*>(&address), &length);
       connect(ends.connecting, reinterpret_cast<const sockaddr*>(&address), length);
     }},
    {"accept", [](const Ends& ends) { accept(ends.idle_listener, nullptr, nullptr); }},
    // This thread never has to wait.
    {"running",
     [](const Ends& ends) {
       send(ends.client, g_bytes.data(), 100, MSG_NOSIGNAL);
       recv(ends.server, g_bytes.data(), 1000, 0);
     }},
};

struct Task {
  const Way& way;
  Ends ends;
};

void* run_for_ever(void* argument) {
  const Task& task = *static_cast<const Task*>(argument);
  for (;;) task.way.call(task.ends);
}

void cancel(const Way& way, std::chrono::milliseconds after) {
  g_bytes.fill('z');
  Pair pair;
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
  epoll_ctl(set, EPOLL_CTL_ADD, pair.server(), &event);
  sockaddr_storage address{};
  socklen_t length = 0;
  int pipe_ends[2] = {};
  (void)!pipe(pipe_ends);
  Task task{way,
            {pair.client(), pair.server(), set, epoll_create1(EPOLL_CLOEXEC),
             memfd_create("conformance", MFD_CLOEXEC), listen_loopback(address, length),
             listen_loopback(address, length), socket(AF_INET, SOCK_STREAM, 0), pipe_ends[1]}};
  (void)!write(task.ends.file, g_bytes.data(), g_bytes.size());
  listen(task.ends.listener, 0);
  pthread_t thread{};
  pthread_create(&thread, nullptr, run_for_ever, &task);
  std::this_thread::sleep_for(after);
  pthread_cancel(thread);
  void* result = nullptr;
  pthread_join(thread, &result);
  NOTE(result == PTHREAD_CANCELED);
  // A reference that the cancelled call did not drop would keep the stream open.
  send(pair.client(), "z", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  pair.close_client();
  ssize_t got = 0;
  bool right = true;
  while ((got = recv(pair.server(), g_bytes.data(), g_bytes.size(), 0)) > 0)
    right = right && std::string(g_bytes.data(), static_cast<size_t>(got)).find_first_not_of('z') ==
                         std::string::npos;
  NOTE(right);
  NOTE(got);
  const Ends& ends = task.ends;
  for (const int fd : {ends.set, ends.idle_set, ends.file, ends.listener, ends.idle_listener,
                       ends.connecting, ends.pipe, pipe_ends[0]})
    close(fd);
}

/// Cancels a thread that has disabled cancellation. The thread notices nothing until it enables it.
void cancel_disabled() {
  struct Disabled {
    const Pair pair{};
    int polled = -1;
    int polled_error = 0;
    ssize_t got = -1;
    std::atomic<bool> waits{false};
  } state;
  pthread_t thread{};
  pthread_create(
      &thread, nullptr,
      [](void* argument) -> void* {
        Disabled& mine = *static_cast<Disabled*>(argument);
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        pollfd there{mine.pair.server(), POLLIN, 0};
        mine.waits = true;
        errno = 0;
        mine.polled = poll(&there, 1, 100);
        mine.polled_error = errno;
        char byte = 0;
        mine.got = recv(mine.pair.server(), &byte, 1, 0);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
        recv(mine.pair.server(), &byte, 1, 0);
        return nullptr;
      },
      &state);
  while (!state.waits) std::this_thread::yield();
  std::this_thread::sleep_for(10ms);
  pthread_cancel(thread);
  std::this_thread::sleep_for(150ms);
  give(state.pair.client(), "x");
  void* result = nullptr;
  pthread_join(thread, &result);
  NOTE(result == PTHREAD_CANCELED);
  NOTE(state.polled);
  NOTE(state.polled_error);
  NOTE(state.got);
}

/// The state of the cases in which a signal handler runs in the cancelled thread, in a call on a
/// stream.
struct Interrupted {
  const Pair pair{};
  sigjmp_buf place;
  std::atomic<bool> is_ready{false};
  std::atomic<bool> has_jumped{false};
  std::atomic<bool> is_cancelled{false};
};
Interrupted* g_interrupted = nullptr;

/// Cancels some thread, so that the thread of the case is not the first one to be cancelled.
void cancel_one() {
  pthread_t thread{};
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        for (;;) pause();
      },
      nullptr);
  pthread_cancel(thread);
  pthread_join(thread, nullptr);
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigaction(number, &action, nullptr);
}

/// Cancels a thread between the jump and its next call.
void cancel_after_a_jump() {
  Interrupted state;
  g_interrupted = &state;
  cancel_one();
  handle(SIGUSR1, [](int) { siglongjmp(g_interrupted->place, 1); });
  pthread_t thread{};
  pthread_create(
      &thread, nullptr,
      [](void*) -> void* {
        char byte = 0;
        if (sigsetjmp(g_interrupted->place, 1) == 0) {
          g_interrupted->is_ready = true;
          recv(g_interrupted->pair.server(), &byte, 1, 0);
        }
        g_interrupted->has_jumped = true;
        while (!g_interrupted->is_cancelled) {
        }
        pollfd there{g_interrupted->pair.server(), POLLIN, 0};
        for (;;) poll(&there, 1, -1);
      },
      nullptr);
  while (!state.is_ready) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);  // the thread sleeps by now
  pthread_kill(thread, SIGUSR1);
  while (!state.has_jumped) std::this_thread::yield();
  pthread_cancel(thread);
  state.is_cancelled = true;
  void* result = nullptr;
  pthread_join(thread, &result);
  NOTE(result == PTHREAD_CANCELED);
  handle(SIGUSR1, SIG_DFL);
}

/// Cancels a thread whose first chance to be cancelled is in the handler.
void cancel_in_a_handler() {
  static int out = -1;
  int ends[2] = {};
  (void)!pipe(ends);
  out = ends[1];
  cancel_one();
  handle(SIGUSR1, [](int) { (void)!write(out, "x", 1); });
  Interrupted state;
  g_interrupted = &state;
  bool all = true;
  for (int i = 0; i < 20; ++i) {
    pthread_t thread{};
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          char byte = 0;
          for (;;) recv(g_interrupted->pair.server(), &byte, 1, 0);
        },
        nullptr);
    std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
    pthread_kill(thread, SIGUSR1);
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    all = all && result == PTHREAD_CANCELED;
  }
  NOTE(all);
  handle(SIGUSR1, SIG_DFL);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace

CASES(cancelled) {
  add_case("cancelled.after_a_jump_out_of_a_call", cancel_after_a_jump);
  add_case("cancelled.in_a_handler_in_a_call", cancel_in_a_handler);
  add_case("cancelled.a_thread_that_has_disabled_it", cancel_disabled);
  for (const Way& way : kWays) {
    add_case(std::string("cancelled.") + way.name, [&way] {
      for (const auto after : {0ms, 1ms, 20ms}) cancel(way, after);
    });
  }
}

}  // namespace conformance

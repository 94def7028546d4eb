// Handlers that leave by siglongjmp() what they have interrupted, as programs did before there were
// time limits for calls: the call is over, and everything goes on.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csetjmp>
#include <csignal>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

constexpr int kJumps = 30;
constexpr size_t kPiece = 3000;

sigjmp_buf g_place;
std::array<char, 64 * 1024> g_bytes;  // those that are sent are all the same
int g_set = -1;

/// What is called again and again until the jump. No objects that it would skip.
struct Way {
  const char* name;
  void (*call)(int client, int server);
};

void send_one_piece(int client) {
  for (size_t done = 0; done < kPiece;) {
    const ssize_t sent = send(client, g_bytes.data(), kPiece - done, MSG_NOSIGNAL);
    if (sent > 0) done += static_cast<size_t>(sent);
  }
}

constexpr Way kWays[] = {
    {"recv", [](int, int server) { recv(server, g_bytes.data(), 100, 0); }},
    {"recvmsg",
     [](int, int server) {
       iovec part{g_bytes.data(), 100};
       msghdr message{};
       message.msg_iov = &part;
       message.msg_iovlen = 1;
       recvmsg(server, &message, MSG_WAITALL);
     }},
    {"readv",
     [](int, int server) {
       const iovec parts[] = {{g_bytes.data(), 10}, {g_bytes.data() + 10, 10}};
       readv(server, parts, 2);
     }},
    {"poll",
     [](int, int server) {
       pollfd there{server, POLLIN, 0};
       poll(&there, 1, -1);
     }},
    {"select",
     [](int, int server) {
       fd_set reads;
       FD_ZERO(&reads);
       FD_SET(server, &reads);
       select(server + 1, &reads, nullptr, nullptr, nullptr);
     }},
    {"epoll_wait",
     [](int, int) {
       epoll_event event;
       epoll_wait(g_set, &event, 1, -1);
     }},
    {"send", [](int client, int) { send(client, g_bytes.data(), g_bytes.size(), MSG_NOSIGNAL); }},
    {"writev",
     [](int client, int) {
       const iovec parts[] = {{g_bytes.data(), 20'000}, {g_bytes.data(), 20'000}};
       writev(client, parts, 2);
     }},
    {"running",
     [](int client, int server) {
       send_one_piece(client);
       for (size_t done = 0; done < kPiece;) {
         // No more than is there: what was sent before a jump may be there besides.
         const ssize_t got = recv(server, g_bytes.data(), kPiece - done, 0);
         if (got > 0) done += static_cast<size_t>(got);
       }
     }},
};

/// In a child, which has no other use for SIGALRM. The status that it ends with.
int jump_out_of(const Way& way) {
  Pair own;
  g_bytes.fill('z');
  g_set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
  epoll_ctl(g_set, EPOLL_CTL_ADD, own.server(), &event);
  struct sigaction action {};
  action.sa_handler = [](int) { siglongjmp(g_place, 1); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  static volatile int jumps = 0;
  if (sigsetjmp(g_place, 1) != 0) jumps = jumps + 1;
  if (jumps < kJumps) {
    const itimerval soon{{0, 0}, {0, 300 + 97 * jumps}};
    setitimer(ITIMER_REAL, &soon, nullptr);
    for (;;) way.call(own.client(), own.server());
  }
  g_bytes.fill('?');
  // A reference that a jump had skipped would keep the stream open.
  send(own.client(), "z", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  own.close_client();
  for (;;) {
    const ssize_t got = recv(own.server(), g_bytes.data(), g_bytes.size(), 0);
    if (got == 0) return 7;
    if (got < 0) return 1;
    for (ssize_t i = 0; i < got; ++i)
      if (g_bytes[static_cast<size_t>(i)] != 'z') return 2;
  }
}

}  // namespace

CASES(jumps) {
  for (const Way& way : kWays) {
    add_case(std::string("processes.a_handler_that_jumps_out.") + way.name, [&way] {
      const pid_t child = fork_quietly();
      if (child == 0) _exit(jump_out_of(way));
      int status = 0;
      waitpid(child, &status, 0);
      NOTE(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    });
  }
}

}  // namespace conformance

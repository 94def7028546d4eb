// Handlers that leave an interrupted call by siglongjmp(), as programs did before calls had time
// limits: the call is over, and everything else goes on.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
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
std::array<char, 64 * 1024> g_bytes;  // the bytes that are sent are all the same
int g_set = -1;
int g_copy = -1;  // a duplicate of the client's descriptor

/// A function that is called again and again until the jump. Has no objects whose destructors the
/// jump would skip.
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

// A connection that is made and closed again and again; any step may be the last before a jump.
volatile int g_listener = -1;
volatile int g_connecting = -1;
volatile int g_accepted = -1;
sockaddr_storage g_listening_at{};
socklen_t g_address_length = 0;

void begin_to_connect() {
  if (g_connecting >= 0) close(g_connecting);
  g_connecting = socket(AF_INET, SOCK_STREAM, 0);
  connect(g_connecting, reinterpret_cast<const sockaddr*>(&g_listening_at), g_address_length);
}

void connect_and_close() {
  if (g_connecting >= 0) close(g_connecting);  // left open by a jump
  g_connecting = -1;
  // A stream that stayed open after a jump out of close() would never end.
  while (g_accepted >= 0 && recv(g_accepted, g_bytes.data(), 1, 0) > 0) {
  }
  if (g_accepted >= 0) close(g_accepted);
  g_accepted = -1;
  begin_to_connect();
  g_accepted = accept4(g_listener, nullptr, nullptr, SOCK_NONBLOCK);
  if (g_accepted < 0) return;
  fcntl(g_accepted, F_SETFL, 0);
  send(g_connecting, "z", 1, MSG_NOSIGNAL);
  shutdown(g_connecting, SHUT_WR);
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
         // Takes no more than is there. Bytes that were sent before a jump may be there as well.
         const ssize_t got = recv(server, g_bytes.data(), kPiece - done, 0);
         if (got > 0) done += static_cast<size_t>(got);
       }
     }},
    {"options",
     [](int client, int server) {
       const timeval time{1000, 0};
       setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
       int value = 0;
       socklen_t length = sizeof value;
       getsockopt(client, SOL_SOCKET, SO_ERROR, &value, &length);
       ioctl(server, FIONREAD, &value);
       fcntl(client, F_SETFL, 0);
       epoll_event event{EPOLLIN | EPOLLET, {}};
       epoll_ctl(g_set, EPOLL_CTL_MOD, server, &event);
     }},
    {"dup2",
     [](int client, int server) {
       dup2(client, g_copy);
       send(g_copy, g_bytes.data(), 100, MSG_DONTWAIT | MSG_NOSIGNAL);
       recv(server, g_bytes.data(), 100, MSG_DONTWAIT);
     }},
    {"a_connection_s_life", [](int, int) { connect_and_close(); }},
    {"a_connect_that_sleeps",
     [](int, int) {
       listen(g_listener, 0);  // nobody accepts, and the queue has little room
       begin_to_connect();
     }},
};

/// Runs in a child, which has no other use for SIGALRM. Returns the child's exit status.
int jump_out_of(const Way& way) {
  Pair own;
  g_bytes.fill('z');
  g_set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{EPOLLIN, {}};
  epoll_ctl(g_set, EPOLL_CTL_ADD, own.server(), &event);
  g_copy = dup(own.client());
  g_listener = listen_loopback(g_listening_at, g_address_length);
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
  // A reference whose release a jump had skipped would keep the stream open.
  send(own.client(), "z", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  close(g_copy);
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

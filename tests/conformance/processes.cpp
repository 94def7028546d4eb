// fork: streams that two processes hold.
#include <fcntl.h>
#include <poll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// Runs `body` in a child. Its result is the child's exit code, which is returned.
int in_child(int (*body)(Pair& pair), Pair& pair) {
  const pid_t child = fork_quietly();
  if (child == 0) _exit(body(pair));
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

CASE(processes, a_child_sends) {
  Pair pair;
  NOTE(in_child([](Pair& p) { return send(p.client(), "child", 5, 0) == 5 ? 0 : 1; }, pair));
  NOTE(take(pair.server(), 5));
  give(pair.client(), "parent");
  NOTE(take(pair.server(), 6));
}

CASE(processes, a_child_receives_what_was_sent_before) {
  Pair pair;
  give(pair.client(), "before");
  await_bytes(pair.server(), 6);
  NOTE(in_child([](Pair& p) { return take(p.server(), 6) == "before" ? 0 : 1; }, pair));
  give(pair.client(), "after");
  NOTE(take(pair.server(), 5));
}

CASE(processes, parent_and_child_share_what_is_unread) {
  Pair pair;
  give(pair.client(), "abcdef");
  await_bytes(pair.server(), 6);
  NOTE(in_child([](Pair& p) { return take(p.server(), 3) == "abc" ? 0 : 1; }, pair));
  NOTE(take(pair.server(), 3));
}

CASE(processes, a_child_that_closes_ends_nothing) {
  Pair pair;
  NOTE(in_child(
      [](Pair& p) {
        p.close_client();
        p.close_server();
        return 0;
      },
      pair));
  give(pair.client(), "still");
  NOTE(take(pair.server(), 5));
}

CASE(processes, a_child_has_a_copy_with_a_high_number) {
  Pair pair;
  const int copy = fcntl(pair.client(), F_DUPFD, 700);
  pair.close_client();
  const pid_t child = fork_quietly();
  if (child == 0) {
    const bool sent = send(copy, "child", 5, 0) == 5;
    const bool received = take(copy, 5) == "after";
    _exit(sent && received && close(copy) == 0 && close(copy) == -1 ? 0 : 1);
  }
  NOTE(take(pair.server(), 5));
  give(pair.server(), "after");
  int status = 0;
  waitpid(child, &status, 0);
  NOTE(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  give(pair.server(), "again");
  NOTE(take(copy, 5));
  close(copy);
}

CASE(processes, a_child_serves) {
  // As in a fork server, the parent closes its end and the child answers.
  Pair pair;
  const pid_t child = fork_quietly();
  if (child == 0) {
    pair.close_client();
    const std::string asked = take(pair.server(), 4);
    const std::string answer = "got " + asked;
    _exit(send(pair.server(), answer.data(), answer.size(), 0) == 8 ? 0 : 1);
  }
  pair.close_server();
  give(pair.client(), "this");
  NOTE(take(pair.client(), 8));
  int status = 0;
  waitpid(child, &status, 0);
  NOTE(WEXITSTATUS(status));
  NOTE(take(pair.client(), 1));
}

CASE(processes, a_child_connects_anew) {
  Pair pair;
  NOTE(in_child(
      [](Pair&) {
        const Pair own;
        give(own.client(), "own");
        return take(own.server(), 3) == "own" ? 0 : 1;
      },
      pair));
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(processes, many_children) {
  Pair pair;
  for (int i = 0; i < 5; ++i) {
    NOTE(in_child([](Pair& p) { return send(p.client(), "c", 1, 0) == 1 ? 0 : 1; }, pair));
    give(pair.client(), "p");
    NOTE(take(pair.server(), 2));
  }
}

CASE(processes, a_server_that_forks_for_each_connection) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  for (int i = 0; i < 5; ++i) {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    SEE(connect(client, reinterpret_cast<sockaddr*>(&address), length));
    const int server = accept(listener, nullptr, nullptr);
    if (i % 2 == 0) settle(client, server);  // the others have no time to leave the kernel
    give(client, "question ");
    const pid_t child = fork_quietly();
    if (child == 0) {
      close(listener);
      close(client);
      const std::string asked = take(server, 18);
      give(server, "answer to " + asked);
      _exit(0);
    }
    forget(server);
    close(server);
    give(client, std::to_string(i) + " question");
    NOTE(take(client, 28));
    NOTE(take(client, 1));
    int status = 0;
    waitpid(child, &status, 0);
    NOTE(status);
    forget(client);
    close(client);
  }
  close(listener);
}

CASE(processes, servers_that_share_a_listening_socket) {
  sockaddr_storage address;
  socklen_t length = 0;
  const int listener = listen_loopback(address, length);
  constexpr int kServers = 3;
  constexpr int kEach = 4;
  std::array<pid_t, kServers> servers{};
  for (pid_t& server : servers) {
    server = fork_quietly();
    if (server != 0) continue;
    for (int served = 0; served < kEach; ++served) {
      const int fd = accept(listener, nullptr, nullptr);
      const std::string asked = take(fd, 5);
      give(fd, asked + asked);
      if (take(fd, 1) != "") _exit(1);
      close(fd);
    }
    _exit(0);
  }
  for (unsigned i = 0; i < kServers * kEach; ++i) {
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    SEE(connect(client, reinterpret_cast<sockaddr*>(&address), length));
    usleep(i % 3 * 1000);
    give(client, text(5, i));
    NOTE(take(client, 10));
    close(client);
  }
  for (const pid_t server : servers) {
    int status = 0;
    waitpid(server, &status, 0);
    NOTE(status);
  }
  close(listener);
}

CASE(processes, threads_that_send_while_another_forks) {
  Pair pair;
  Pair other;
  const std::string data = text(600'000);
  std::thread there([&] { give(pair.client(), data); });
  std::thread back([&] { give(other.server(), data); });
  std::string received;
  std::thread reader([&] { received = take(other.client(), data.size()); });
  for (int i = 0; i < 4; ++i) {
    NOTE(in_child([](Pair&) { return 7; }, pair));
    NOTE(digest(take(pair.server(), data.size() / 4)));
  }
  there.join();
  back.join();
  reader.join();
  NOTE(digest(received));
}

namespace {

std::atomic<int> g_alarms{0};

/// Uses a stream until `handler` runs, at whatever point of a call. Runs in a child, which has
/// nothing else to wait for. Allocates nothing meanwhile: fork() waits for malloc's lock, which the
/// interrupted thread would hold.
void use_until_alarm(void (*handler)(int), int microseconds) {
  const Pair own;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  const std::string sent = text(3000);
  std::string got(sent.size(), '\0');
  const auto use = [&] {
    send(own.client(), sent.data(), sent.size(), 0);
    recv(own.server(), got.data(), got.size(), MSG_WAITALL);
    return got == sent;
  };
  const int before = g_alarms;
  const itimerval soon{{0, 0}, {0, microseconds}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  while (g_alarms == before) {
    if (!use()) _exit(4);
  }
  if (!use()) _exit(5);
}

}  // namespace

CASE(processes, a_handler_that_ends_the_process) {
  Pair pair;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork_quietly();
    if (child == 0) use_until_alarm([](int) { _exit(3); }, 200 + 37 * i);
    int status = 0;
    waitpid(child, &status, 0);
    NOTE(WEXITSTATUS(status));
  }
  give(pair.client(), "x");
  NOTE(take(pair.server(), 1));
}

CASE(processes, a_handler_that_forks) {
  Pair pair;
  const pid_t child = fork_quietly();
  if (child == 0) {
    for (int i = 0; i < 4; ++i) {
      use_until_alarm(
          [](int) {
            ++g_alarms;
            const pid_t forked = fork();
            if (forked == 0) _exit(0);
            waitpid(forked, nullptr, 0);
          },
          200 + 153 * i);
    }
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  NOTE(WEXITSTATUS(status));
}

namespace {

/// The streams that handle_and_use() uses, and what it has seen.
const Pair* g_used = nullptr;
const Pair* g_waited = nullptr;
std::atomic<int> g_handled{0};
std::atomic<int> g_wrong{0};

/// Does what POSIX lets a handler do with a stream, whatever call it has interrupted.
void handle_and_use(int) {
  const int server = g_used->server();
  char bytes[8] = "";
  // Sends more messages than one block of the engine's records of arrivals has room for.
  for (int i = 0; i < 100; ++i) send(g_used->client(), "12345678", 8, 0);
  for (int i = 0; i < 100; ++i) {
    pollfd fd{server, POLLIN, 0};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(server, &readable);
    const int polled = i % 25 == 0 ? poll(&fd, 1, -1) : 1;
    const int selected = i % 25 == 1 ? select(server + 1, &readable, nullptr, nullptr, nullptr) : 1;
    const ssize_t got = recv(server, bytes, sizeof bytes, MSG_WAITALL);
    if (polled != 1 || selected != 1 || got != 8 || std::memcmp(bytes, "12345678", 8) != 0)
      ++g_wrong;
  }
  // The handler may also sleep: a thread answers after a while.
  if (send(g_waited->client(), "a", 1, 0) != 1 || recv(g_waited->client(), bytes, 1, 0) != 1 ||
      bytes[0] != 'a')
    ++g_wrong;
  ++g_handled;
}

}  // namespace

CASE(processes, a_handler_that_uses_a_stream) {
  const Pair pair;
  const Pair other;
  g_used = &pair;
  g_waited = &other;
  g_handled = 0;
  g_wrong = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = handle_and_use;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, &before);
  constexpr int kTimes = 60;
  // This thread has none of the library's per-thread data yet, and is in malloc all the time.
  std::atomic<bool> whole{true};
  std::thread busy([&whole] {
    std::vector<std::unique_ptr<std::string>> blocks(64);
    for (size_t i = 0; g_handled < kTimes; ++i) {
      auto& block = blocks[i * 7 % blocks.size()];
      block = std::make_unique<std::string>(i * 31 % 5000, static_cast<char>(i));
      if (!block->empty() && block->back() != static_cast<char>(i)) whole = false;
    }
  });
  std::thread echo([&other] {
    char byte = 0;
    while (recv(other.server(), &byte, 1, 0) == 1) {
      usleep(1000);
      send(other.server(), &byte, 1, 0);
    }
  });
  for (int i = 0; i < kTimes; ++i) {
    pthread_kill(busy.native_handle(), SIGUSR1);
    while (g_handled == i) usleep(100);
  }
  busy.join();
  shutdown(other.client(), SHUT_WR);
  echo.join();
  sigaction(SIGUSR1, &before, nullptr);
  NOTE(g_wrong.load());
  NOTE(whole.load());
}

CASE(processes, children_that_close_what_other_threads_use) {
  Pair pairs[3];
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (const Pair& pair : pairs) {
    threads.emplace_back([&pair, &stop] {
      for (char byte = 'a'; !stop; byte = 'a') {
        send(pair.client(), &byte, 1, 0);
        recv(pair.server(), &byte, 1, 0);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork_quietly();
    if (child == 0) {
      for (const Pair& pair : pairs) {
        close(pair.client());
        close(pair.server());
      }
      _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    NOTE(WEXITSTATUS(status));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

CASE(processes, a_child_shuts_for_both) {
  Pair pair;
  NOTE(in_child([](Pair& p) { return shutdown(p.client(), SHUT_WR); }, pair));
  await_end(pair.server());
  NOTE(take(pair.server(), 1));
  SEE(send(pair.client(), "x", 1, MSG_NOSIGNAL));
}

}  // namespace conformance

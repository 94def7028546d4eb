// fork: streams that two processes hold.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

namespace conformance {
namespace {

/// Runs `body` in a child, whose exit code it is.
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

CASE(processes, a_child_serves) {
  // As a fork server does: the parent closes its end, the child answers.
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

CASE(processes, a_child_shuts_for_both) {
  Pair pair;
  NOTE(in_child([](Pair& p) { return shutdown(p.client(), SHUT_WR); }, pair));
  await_end(pair.server());
  NOTE(take(pair.server(), 1));
  SEE(send(pair.client(), "x", 1, MSG_NOSIGNAL));
}

}  // namespace conformance

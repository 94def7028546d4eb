// What poll, select and epoll report for a stream in every state that it can be in.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "tests/conformance/cases.hpp"
#include "tests/conformance/event_mask.hpp"
#include "tests/conformance/pair.hpp"
#include "tests/conformance/transcript.hpp"

// The function that a program compiled with _FORTIFY_SOURCE calls.
extern "C" int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room);

namespace conformance {
namespace {

timespec to_time(int milliseconds) {
  return {milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
}

/// A way to wait for `events` of `fd`, for at most `milliseconds` (negative: forever). Returns the
/// result of the call, and what it says of `fd`. select's three sets appear as IN, OUT and PRI.
struct Way {
  const char* name;
  int (*wait)(int fd, unsigned events, int milliseconds, unsigned& seen);
};

int wait_epoll(int fd, unsigned events, unsigned& seen,
               const std::function<int(int, epoll_event*)>& wait) {
  const int set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{};
  event.events = events;
  event.data.u64 = 7;
  int result = epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
  epoll_event found[4]{};
  if (result == 0) result = wait(set, found);
  const int error = errno;
  seen = result > 0 ? found[0].events : 0;
  close(set);
  errno = error;
  return result;
}

int wait_select(int fd, unsigned events, unsigned& seen,
                const std::function<int(int, fd_set*, fd_set*, fd_set*)>& wait) {
  fd_set sets[3];
  const unsigned bits[3] = {POLLIN, POLLOUT, POLLPRI};
  for (int i = 0; i < 3; ++i) {
    FD_ZERO(&sets[i]);
    if (fd >= 0 && (events & bits[i]) != 0) FD_SET(fd, &sets[i]);
  }
  const int result = wait(fd + 1, &sets[0], &sets[1], &sets[2]);
  seen = 0;
  for (int i = 0; result > 0 && i < 3; ++i)
    if (FD_ISSET(fd, &sets[i])) seen |= bits[i];
  return result;
}

const Way kWays[] = {
    {"poll",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       pollfd one{fd, static_cast<short>(events), 0};
       const int result = poll(&one, 1, milliseconds);
       seen = static_cast<unsigned short>(one.revents);
       return result;
     }},
    {"ppoll",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       pollfd one{fd, static_cast<short>(events), 0};
       const timespec time = to_time(milliseconds);
       const int result = ppoll(&one, 1, milliseconds < 0 ? nullptr : &time, nullptr);
       seen = static_cast<unsigned short>(one.revents);
       return result;
     }},
    {"poll_chk",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       pollfd one{fd, static_cast<short>(events), 0};
       const int result = __poll_chk(&one, 1, milliseconds, sizeof one);
       seen = static_cast<unsigned short>(one.revents);
       return result;
     }},
    {"select",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       return wait_select(
           fd, events, seen, [&](int count, fd_set* in, fd_set* out, fd_set* urgent) {
             timeval time{milliseconds / 1000, milliseconds % 1000 * 1000};
             return select(count, in, out, urgent, milliseconds < 0 ? nullptr : &time);
           });
     }},
    {"pselect",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       return wait_select(
           fd, events, seen, [&](int count, fd_set* in, fd_set* out, fd_set* urgent) {
             const timespec time = to_time(milliseconds);
             return pselect(count, in, out, urgent, milliseconds < 0 ? nullptr : &time, nullptr);
           });
     }},
    {"epoll_wait",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       return wait_epoll(fd, events, seen, [&](int set, epoll_event* found) {
         return epoll_wait(set, found, 4, milliseconds);
       });
     }},
    {"epoll_pwait",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       return wait_epoll(fd, events, seen, [&](int set, epoll_event* found) {
         return epoll_pwait(set, found, 4, milliseconds, nullptr);
       });
     }},
    {"epoll_pwait2",
     [](int fd, unsigned events, int milliseconds, unsigned& seen) {
       return wait_epoll(fd, events, seen, [&](int set, epoll_event* found) {
         const timespec time = to_time(milliseconds);
         return epoll_pwait2(set, found, 4, milliseconds < 0 ? nullptr : &time, nullptr);
       });
     }},
};

constexpr unsigned kAll =
    POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM | POLLRDBAND | POLLWRBAND;

class Call {
 public:
  explicit Call(const Way& way) : way_(way) {}
  /// Notes the readiness now.
  void operator()(int fd, unsigned events = kAll) const { wait(fd, events, 0); }
  /// Notes the readiness when one of `events` has come or the time is over.
  void wait(int fd, unsigned events, int milliseconds = 5000) const {
    unsigned seen = 0;
    see("waits for " + mask_text(events),
        [&] { return way_.wait(fd, events, milliseconds, seen); });
    add_line("  and sees", mask_text(seen));
  }

 private:
  const Way& way_;
};

struct Scenario {
  const char* name;
  void (*body)(const Call& call);
};

const Scenario kScenarios[] = {
    {"idle",
     [](const Call& call) {
       Pair pair;
       call(pair.client());
       call(pair.server());
       call(pair.server(), POLLIN);
       call(pair.server(), POLLOUT);
       call(pair.server(), 0);
     }},
    {"bytes",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "xy");
       call.wait(pair.server(), POLLIN);
       call(pair.server());
       call(pair.server(), POLLOUT);
       NOTE(take(pair.server(), 1));
       call(pair.server());
       NOTE(take(pair.server(), 1));
       call(pair.server());
     }},
    {"time_is_up",
     [](const Call& call) {
       Pair pair;
       const auto start = std::chrono::steady_clock::now();
       call.wait(pair.server(), POLLIN, 25);
       NOTE(std::chrono::steady_clock::now() - start > std::chrono::milliseconds(20));
     }},
    {"half_closed_by_the_peer",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       call(pair.server());
       call(pair.server(), POLLRDHUP);
       call(pair.server(), POLLIN);
       call(pair.client());
     }},
    {"half_closed_with_bytes",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "x");
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       call(pair.server());
       NOTE(take(pair.server(), 1));
       call(pair.server());
       NOTE(take(pair.server(), 1));
       call(pair.server());
     }},
    {"shut_by_both",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       SEE(shutdown(pair.server(), SHUT_WR));
       await_end(pair.client());
       call.wait(pair.server(), 0);
       call(pair.server());
       call(pair.client());
     }},
    {"normal_and_band",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "x");
       await_bytes(pair.server(), 1);
       for (const int fd : {pair.server(), pair.client()})
         for (const int events : {POLLRDNORM, POLLWRNORM, POLLRDBAND, POLLWRBAND})
           call(fd, static_cast<unsigned>(events));
       call(pair.server(), POLLIN | POLLRDNORM);
       call(pair.server(), POLLOUT | POLLWRNORM);
       call.wait(pair.server(), POLLIN | POLLRDNORM, 1000);
     }},
    {"hang_up_with_unread_bytes",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "xy");
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       call(pair.server());
       SEE(shutdown(pair.server(), SHUT_WR));
       call(pair.server());
       call(pair.server(), 0);
       NOTE(take(pair.server(), 1));
       call(pair.server());
       call(pair.server(), 0);
       NOTE(take(pair.server(), 2));
       call(pair.server());
       call(pair.server(), 0);
     }},
    {"wakes_for_the_hang_up",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "x");
       SEE(shutdown(pair.client(), SHUT_WR));
       await_end(pair.server());
       const Later later(20, [&] { shutdown(pair.server(), SHUT_WR); });
       call.wait(pair.server(), 0, 500);
     }},
    {"errors_do_not_count_for_urgent_bytes",
     [](const Call& call) {
       Pair pair;
       pair.reset_server();
       await_end(pair.client());
       call.wait(pair.client(), POLLPRI, 50);
     }},
    {"closed_by_the_peer",
     [](const Call& call) {
       Pair pair;
       pair.close_client();
       await_end(pair.server());
       call(pair.server());
       call(pair.server(), POLLIN);
       call(pair.server(), POLLOUT);
     }},
    {"closed_by_the_peer_with_bytes",
     [](const Call& call) {
       Pair pair;
       give(pair.client(), "x");
       pair.close_client();
       await_end(pair.server());
       call(pair.server());
       NOTE(take(pair.server(), 1));
       call(pair.server());
     }},
    {"reset_by_the_peer",
     [](const Call& call) {
       Pair pair;
       pair.reset_server();
       await_end(pair.client());
       call.wait(pair.client(), 0);
       call(pair.client());
       call(pair.client(), POLLIN);
       call(pair.client(), POLLOUT);
       char byte;
       SEE(recv(pair.client(), &byte, 1, 0));
       call(pair.client());
     }},
    {"own_shutdown_read",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_RD));
       call(pair.server());
       call(pair.server(), POLLIN);
       call(pair.client());
     }},
    {"own_shutdown_write",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_WR));
       call(pair.server());
       call(pair.server(), POLLOUT);
       call(pair.server(), POLLIN);
     }},
    {"own_shutdown_both",
     [](const Call& call) {
       Pair pair;
       SEE(shutdown(pair.server(), SHUT_RDWR));
       call(pair.server());
       call(pair.server(), 0);
     }},
    {"full",
     [](const Call& call) {
       Pair pair(true);
       const size_t total = fill(pair);
       call(pair.client());
       call(pair.client(), POLLOUT);
       {
         const Later later(20, [&] { take(pair.server(), total); });
         call.wait(pair.client(), POLLOUT);
       }
       call(pair.client());
       call(pair.server());
     }},
    {"wakes_for_bytes",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { give(pair.client(), "x"); });
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"wakes_for_the_end",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { pair.close_client(); });
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"wakes_for_half_close",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { shutdown(pair.client(), SHUT_WR); });
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"wakes_for_a_reset",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { pair.reset_server(); });
       call.wait(pair.client(), POLLIN, -1);
     }},
    {"wakes_for_own_shutdown",
     [](const Call& call) {
       Pair pair;
       const Later later(20, [&] { shutdown(pair.server(), SHUT_RD); });
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"interrupted",
     [](const Call& call) {
       Pair pair;
       const Interruptions interruptions(false);
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"interrupted_although_restarting",
     [](const Call& call) {
       Pair pair;
       const Interruptions interruptions(true);
       call.wait(pair.server(), POLLIN, -1);
     }},
    {"no_descriptor",
     [](const Call& call) {
       Pair pair;
       const int fd = pair.server();
       pair.close_server();
       call(fd, POLLIN);
     }},
    {"connecting_refused",
     [](const Call& call) {
       sockaddr_storage address;
       socklen_t length = 0;
       const int listener = listen_loopback(address, length);
       close(listener);
       const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
       connect(fd, reinterpret_cast<sockaddr*>(&address), length);
       call.wait(fd, POLLOUT);
       call(fd);
       int error = 0;
       socklen_t size = sizeof error;
       SEE(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
       NOTE(errno_name(error));
       call(fd);
       close(fd);
     }},
    {"not_connected",
     [](const Call& call) {
       const int fd = socket(AF_INET, SOCK_STREAM, 0);
       call(fd);
       close(fd);
     }},
    {"listening",
     [](const Call& call) {
       sockaddr_storage address;
       socklen_t length = 0;
       const int listener = listen_loopback(address, length);
       call(listener);
       const int fd = socket(AF_INET, SOCK_STREAM, 0);
       SEE(connect(fd, reinterpret_cast<sockaddr*>(&address), length));
       call.wait(listener, POLLIN);
       close(fd);
       close(listener);
     }},
};

}  // namespace

CASES(readiness) {
  for (const Way& way : kWays)
    for (const Scenario& scenario : kScenarios)
      add_case(std::string("readiness.") + way.name + "." + scenario.name,
               [&way, &scenario] { scenario.body(Call(way)); });
}

CASE(readiness, select_leaves_the_rest_of_its_time) {
  Pair pair;
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.server(), &in);
  timeval time{0, 20'000};
  SEE(select(pair.server() + 1, &in, nullptr, nullptr, &time));
  NOTE(time.tv_sec);
  NOTE(time.tv_usec);
  NOTE(FD_ISSET(pair.server(), &in) != 0);
}

CASE(readiness, wrong_arguments) {
  Pair pair;
  pollfd one{pair.server(), POLLIN, 0};
  timespec wrong{0, -1};
  SEE(ppoll(&one, 1, &wrong, nullptr));
  fd_set in;
  FD_ZERO(&in);
  FD_SET(pair.server(), &in);
  SEE(pselect(pair.server() + 1, &in, nullptr, nullptr, &wrong, nullptr));
  timeval negative{-1, 0};
  SEE(select(pair.server() + 1, &in, nullptr, nullptr, &negative));
  SEE(select(-1, &in, nullptr, nullptr, nullptr));
}

CASE(readiness, poll_with_a_mask_of_signals) {
  Pair pair;
  sigset_t blocked;
  sigset_t none;
  sigemptyset(&none);
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  SEE(sigprocmask(SIG_BLOCK, &blocked, nullptr));
  {
    const Interruptions interruptions(true);
    pollfd one{pair.server(), POLLIN, 0};
    SEE(poll(&one, 1, 40));
    SEE(ppoll(&one, 1, nullptr, &none));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(pair.server(), &in);
    SEE(pselect(pair.server() + 1, &in, nullptr, nullptr, nullptr, &none));
  }
  const timespec now{0, 0};
  sigtimedwait(&blocked, nullptr, &now);
  SEE(sigprocmask(SIG_UNBLOCK, &blocked, nullptr));
}

}  // namespace conformance

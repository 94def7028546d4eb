#include "tests/programs/waiting.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "tests/programs/die.hpp"

namespace pair {

namespace {

void run_blocking(Connection& c, std::vector<std::thread>& threads) {
  threads.emplace_back([&c] {
    while (c.receive(true) != Step::kEnded) {
    }
  });
  threads.emplace_back([&c] {
    c.wait_known();
    while (c.send_some() != Step::kEnded) {
    }
  });
}

// Serves a ready connection. With `drain`, goes on until the calls would block, as edge triggering
// requires.
void serve(Connection& c, bool readable, bool writable, bool drain) {
  Step in = readable ? Step::kMore : Step::kWouldBlock;
  Step out = writable ? Step::kMore : Step::kWouldBlock;
  do {
    const bool was_known = c.known();
    if (in == Step::kMore) in = c.receive(false);
    if (!was_known && c.known()) out = Step::kMore;
    if (out == Step::kMore && c.known()) out = c.send_some();
  } while (drain && (in == Step::kMore || (out == Step::kMore && c.known())));
}

void run_poll(std::span<Connection*> all) {
  while (true) {
    std::vector<pollfd> fds;
    std::vector<Connection*> order;
    for (Connection* c : all) {
      if (c->done()) continue;
      const int events = (c->wants_read() ? POLLIN : 0) | (c->wants_write() ? POLLOUT : 0);
      fds.push_back({c->fd(), static_cast<short>(events), 0});
      order.push_back(c);
    }
    if (fds.empty()) return;
    if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) die("poll");
    for (size_t i = 0; i < fds.size(); ++i) {
      const bool broken = (fds[i].revents & (POLLERR | POLLHUP)) != 0;
      serve(*order[i], broken || (fds[i].revents & POLLIN) != 0,
            broken || (fds[i].revents & POLLOUT) != 0, false);
    }
  }
}

void run_select(std::span<Connection*> all) {
  while (true) {
    fd_set in;
    fd_set out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    int top = -1;
    for (Connection* c : all) {
      if (c->done()) continue;
      if (c->wants_read()) FD_SET(c->fd(), &in);
      if (c->wants_write()) FD_SET(c->fd(), &out);
      top = std::max(top, c->fd());
    }
    if (top < 0) return;
    if (select(top + 1, &in, &out, nullptr, nullptr) < 0) {
      if (errno == EINTR) continue;
      die("select");
    }
    for (Connection* c : all) {
      if (!c->done()) serve(*c, FD_ISSET(c->fd(), &in) != 0, FD_ISSET(c->fd(), &out) != 0, false);
    }
  }
}

void run_epoll(std::span<Connection*> all, Mode mode) {
  const bool edge = mode == Mode::kEpollEdge;
  const int set = epoll_create1(EPOLL_CLOEXEC);
  if (set < 0) die("epoll_create1");
  const auto wanted = [&](const Connection& c) {
    if (edge) return static_cast<uint32_t>(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    const uint32_t events = (c.wants_read() ? EPOLLIN : 0U) | (c.wants_write() ? EPOLLOUT : 0U);
    return events | (mode == Mode::kEpollOneshot ? static_cast<uint32_t>(EPOLLONESHOT) : 0U);
  };
  size_t left = 0;
  std::map<Connection*, uint32_t> armed;
  for (Connection* c : all) {
    armed[c] = wanted(*c);
    epoll_event event{.events = armed[c], .data = {.ptr = c}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, c->fd(), &event) != 0) die("epoll_ctl ADD");
    ++left;
  }
  while (left > 0) {
    std::array<epoll_event, 64> ready{};
    const int n = epoll_wait(set, ready.data(), static_cast<int>(ready.size()), -1);
    if (n < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < n; ++i) {
      auto& event = ready[static_cast<size_t>(i)];
      Connection& c = *static_cast<Connection*>(event.data.ptr);
      const bool broken = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
      serve(c, broken || (event.events & EPOLLIN) != 0, broken || (event.events & EPOLLOUT) != 0,
            edge);
      if (c.done()) {
        if (epoll_ctl(set, EPOLL_CTL_DEL, c.fd(), nullptr) != 0) die("epoll_ctl DEL");
        --left;
      } else if (mode == Mode::kEpollOneshot || wanted(c) != armed[&c]) {
        armed[&c] = wanted(c);
        epoll_event again{.events = armed[&c], .data = {.ptr = &c}};
        if (epoll_ctl(set, EPOLL_CTL_MOD, c.fd(), &again) != 0) die("epoll_ctl MOD");
      }
    }
  }
  close(set);
}

void run_events(Connections& connections, const Options& options,
                std::vector<std::thread>& threads) {
  for (uint32_t t = 0; t < options.threads; ++t) {
    std::vector<Connection*> mine;
    for (size_t i = t; i < connections.size(); i += options.threads) {
      mine.push_back(connections[i].get());
    }
    threads.emplace_back([mine, mode = options.mode]() mutable {
      for (const Connection* c : mine) {
        if (fcntl(c->fd(), F_SETFL, fcntl(c->fd(), F_GETFL) | O_NONBLOCK) != 0) die("fcntl");
      }
      if (mode == Mode::kPoll) {
        run_poll(mine);
      } else if (mode == Mode::kSelect) {
        run_select(mine);
      } else {
        run_epoll(mine, mode);
      }
    });
  }
}

}  // namespace

void start(Connections& connections, const Options& options, std::vector<std::thread>& threads) {
  if (options.mode == Mode::kBlock) {
    for (auto& c : connections) run_blocking(*c, threads);
  } else {
    run_events(connections, options, threads);
  }
}

}  // namespace pair

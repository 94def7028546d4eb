// Moves streams up and down at random moments, thousands of times, while both ends send and
// receive. The ends check every byte, and the watchdog catches lost wake-ups.
//
//   switch_stress --mode blocking   two threads per end (one for a ping-pong), in send and recv
//   switch_stress --mode waiting    threads in poll and epoll_wait (level, edge, oneshot shared by
//                                   two)
//
// With --fail the connection fails at the end of each round, with bytes in its ring that nobody
// has seen: every stream has to go on over its anchor.
//
// Both ends are in this process; the connection joins the node to itself.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/node/node.hpp"
#include "preload/event_set.hpp"
#include "preload/event_set_table.hpp"
#include "preload/poller.hpp"
#include "tests/stress/end.hpp"
#include "tests/support/break_endpoint.hpp"
#include "tests/support/tracked_pair.hpp"

using namespace sidestep;
using namespace std::chrono_literals;
using tests::End;
using tests::g_progress;
using tests::g_stop;
using tests::Plan;
using Clock = std::chrono::steady_clock;
using Outcome = End::Outcome;

namespace {

struct Settings {
  std::string mode = "blocking";
  unsigned pairs = 4;
  double seconds = 8;
  uint64_t switches = 0;
  uint64_t least = 0;
  uint64_t seed = 1;
  unsigned pause_us = 300;
  unsigned rounds = 1;
  bool fail = false;
  unsigned evictions = 0;
};

struct Pair {
  Pair(Plan plan, bool nonblocking, uint64_t seed)
      : tcp(nonblocking),
        first(tcp.fd(0), tcp.socket(0), plan, true, seed, tests::Pattern::kLongest),
        second(tcp.fd(1), tcp.socket(1), plan, false, seed, tests::Pattern::kLongest) {
    first.meet(second);
    second.meet(first);
  }
  tests::TrackedPair tcp;
  End first;
  End second;
};
using Pairs = std::vector<std::unique_ptr<Pair>>;

bool all_over(const std::vector<End*>& ends) {
  return std::all_of(ends.begin(), ends.end(), [](const End* end) { return end->is_over(); });
}

// ---- blocking calls

void send_all(End& end) {
  for (;;) {
    const Outcome outcome = end.send(true);
    if (outcome == Outcome::over) return;
    if (outcome == Outcome::blocked) std::this_thread::yield();
  }
}

void receive_all(End& end) {
  for (;;) {
    const Outcome outcome = end.receive(true);
    if (outcome == Outcome::over) return;
    if (outcome == Outcome::blocked) std::this_thread::yield();
  }
}

/// Runs an end in one thread: sends a piece, then waits for the other end's.
void take_turns(End& end) {
  while (!end.is_over()) {
    if (end.wants_to_send()) {
      end.send(true);
    } else {
      end.receive(true);
    }
  }
}

// ---- epoll and poll

/// The number of rounds a thread does for one end before it turns to the others: a flood never
/// blocks.
constexpr int kTurn = 32;

/// Returns true if both directions have said EAGAIN, have ended, or wait for their turn.
bool work_until_blocked(End& end) {
  for (int i = 0; i < kTurn; ++i) {
    const Outcome in = end.receive(false);
    const Outcome out = end.send(false);
    if (in != Outcome::moved && out != Outcome::moved) return true;
  }
  return false;
}

enum class Trigger { level, edge, oneshot };

class EpollLoop {
 public:
  EpollLoop(std::vector<End*> ends, Trigger trigger)
      : ends_(std::move(ends)),
        trigger_(trigger),
        in_hand_(ends_.size()),
        epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
    set_ = preload::EventSetTable::find_or_make(epoll_fd_);
    if (set_ == nullptr) tests::give_up("an epoll set");
    for (size_t i = 0; i < ends_.size(); ++i) control(EPOLL_CTL_ADD, i);
  }
  ~EpollLoop() {
    preload::EventSetTable::forget(epoll_fd_);
    close(epoll_fd_);
  }

  void run() {
    epoll_event events[8];
    std::vector<size_t> unfinished;  // edge: the ends that have not said EAGAIN yet
    while (!all_over(ends_)) {
      // The timeout is there only to let the threads of a shared set see the end.
      const int64_t timeout = unfinished.empty() ? (is_shared() ? 100'000'000 : -1) : 0;
      const int count = set_->wait(events, 8, timeout, nullptr);
      if (count < 0) tests::give_up("epoll_wait");
      std::vector<size_t> turn;
      turn.swap(unfinished);
      for (int i = 0; i < count; ++i) {
        const uint64_t index = events[i].data.u64;  // a copy, because epoll_event is packed
        turn.push_back(index);
      }
      for (const size_t index : turn) {
        End& end = *ends_[index];
        if (trigger_ == Trigger::edge) {
          if (!work_until_blocked(end)) unfinished.push_back(index);
          continue;
        }
        if (trigger_ == Trigger::oneshot && in_hand_[index].exchange(true)) {
          std::fprintf(stderr, "FAILED: EPOLLONESHOT gave one end to two threads\n");
          std::abort();
        }
        // With level triggering, one call per event is enough.
        end.receive(false);
        end.send(false);
        if (trigger_ == Trigger::oneshot) in_hand_[index] = false;
        if (end.is_over()) {
          control(EPOLL_CTL_DEL, index);
        } else {
          control(EPOLL_CTL_MOD, index);
        }
      }
    }
  }

 private:
  bool is_shared() const noexcept { return trigger_ == Trigger::oneshot; }

  void control(int operation, size_t index) {
    End& end = *ends_[index];
    epoll_event event{};
    event.events = EPOLLRDHUP;
    if (end.wants_to_send() || trigger_ == Trigger::edge) event.events |= EPOLLOUT;
    event.events |= EPOLLIN;
    if (trigger_ == Trigger::edge) event.events |= EPOLLET;
    if (trigger_ == Trigger::oneshot) event.events |= EPOLLONESHOT;
    event.data.u64 = index;
    if (set_->control(operation, end.fd(), end.socket(), &event) != 0) tests::give_up("epoll_ctl");
  }

  const std::vector<End*> ends_;
  const Trigger trigger_;
  std::vector<std::atomic<bool>> in_hand_;  // oneshot: a thread is working on the end
  const int epoll_fd_;
  std::shared_ptr<preload::EventSet> set_;
};

void poll_loop(const std::vector<End*>& ends) {
  std::vector<pollfd> fds(ends.size());
  while (!all_over(ends)) {
    for (size_t i = 0; i < ends.size(); ++i) {
      fds[i].fd = ends[i]->is_over() ? -1 : ends[i]->fd();
      fds[i].events = static_cast<short>(POLLIN | (ends[i]->wants_to_send() ? POLLOUT : 0));
    }
    if (preload::poll_mixed(fds.data(), fds.size(), -1, nullptr) < 0) tests::give_up("poll");
    for (size_t i = 0; i < ends.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      if ((fds[i].revents & ~POLLOUT) != 0) ends[i]->receive(false);
      ends[i]->send(false);
    }
  }
}

// ---- around it

void dump(const Pairs& pairs) {
  engine::Node& node = *engine::Node::running();
  for (const auto& pair : pairs)
    std::fprintf(stderr, "  %s\n  %s\n", pair->first.describe().c_str(),
                 pair->second.describe().c_str());
  std::fprintf(stderr, "  node: polling %u parked %d attended %d deferred %d, %llu up, %llu down\n",
               node.progress().attendance().polling(), node.progress().attendance().parked(),
               node.progress().attendance().is_attended(), node.progress().deferred().has_any(),
               static_cast<unsigned long long>(node.streams().switches_up()),
               static_cast<unsigned long long>(node.streams().switches_down()));
}

/// Aborts the process when nothing has moved for ten seconds.
void watch(const Pairs& pairs, const std::atomic<bool>& finished) {
  uint64_t seen = ~uint64_t{0};
  auto since = Clock::now();
  while (!finished) {
    std::this_thread::sleep_for(100ms);
    const uint64_t now = g_progress.load(std::memory_order_relaxed);
    if (now != seen) {
      seen = now;
      since = Clock::now();
    } else if (Clock::now() - since > 10s) {
      std::fprintf(stderr, "FAILED: no progress for 10 s\n");
      dump(pairs);
      std::abort();
    }
  }
}

template <typename Holds>
bool wait_for_all(const Pairs& pairs, Holds holds) {
  const auto limit = Clock::now() + 10s;
  for (;;) {
    const bool all = std::all_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return holds(*pair, pair->tcp.stream(0)) && holds(*pair, pair->tcp.stream(1));
    });
    if (all || Clock::now() > limit) return all;
    std::this_thread::sleep_for(1ms);
  }
}

/// Called when no more requests come: every direction must then come up again.
bool all_come_up(const Pairs& pairs) {
  return wait_for_all(pairs, [](Pair&, engine::Stream& stream) {
    return stream.is_bound() && stream.sender().carrier() == engine::Carrier::engine;
  });
}

/// Makes one end of each flood leave the engine for good; the other end must follow, whatever has
/// happened before. A ping-pong stays where it is: streams of both kinds have to end well.
bool floods_settle(const Pairs& pairs) {
  for (const auto& pair : pairs)
    if (pair->first.plan() == Plan::flood) pair->tcp.stream(0).request_down(engine::Reason::fork);
  return wait_for_all(pairs, [](Pair& pair, engine::Stream& stream) {
    return pair.first.plan() != Plan::flood || stream.phase() == engine::Phase::kernel;
  });
}

/// Makes the connection that all streams share fail under load. All must go on over the kernel.
bool failure_takes_all_to_the_kernel(const Pairs& pairs) {
  tests::break_endpoint(*pairs.front()->tcp.stream(0).connection());
  const bool down = wait_for_all(
      pairs, [](Pair&, engine::Stream& stream) { return stream.phase() == engine::Phase::kernel; });
  const uint64_t before = g_progress;
  std::this_thread::sleep_for(20ms);
  return down && g_progress != before;
}

/// Makes the connection that all streams share make way under load. All streams must come back over
/// a new one.
bool eviction_brings_all_back(const Pairs& pairs) {
  engine::Connection& connection = *pairs.front()->tcp.stream(0).connection();
  engine::Node& node = *engine::Node::running();
  // A connection inside a host never makes way, and spinning threads look at it all the while. They
  // may expect it to stay, so a stream of its own keeps it in place.
  node.progress().recv_lock().lock();
  connection.add_stream(*engine::Stream::make_detached({}, -1, false));
  connection.makes_way = true;
  node.progress().recv_lock().unlock();
  tests::break_endpoint(connection);
  return wait_for_all(pairs, [&](Pair&, engine::Stream& stream) {
    return stream.is_bound() && stream.connection() != &connection &&
           stream.sender().carrier() == engine::Carrier::engine;
  });
}

void start_blocking(const Pairs& pairs, std::vector<std::thread>& threads) {
  for (const auto& pair : pairs) {
    for (End* end : {&pair->first, &pair->second}) {
      if (end->plan() == Plan::ping_pong) {
        threads.emplace_back(take_turns, std::ref(*end));
      } else {
        threads.emplace_back(send_all, std::ref(*end));
        threads.emplace_back(receive_all, std::ref(*end));
      }
    }
  }
}

void start_waiting(const Pairs& pairs, std::vector<std::thread>& threads,
                   std::vector<std::unique_ptr<EpollLoop>>& loops) {
  // The two ends of a pair wait in different ways, and every way meets every other.
  std::vector<End*> groups[4];
  for (size_t i = 0; i < pairs.size(); ++i) {
    groups[i % 4].push_back(&pairs[i]->first);
    groups[(i + 1 + i / 4 % 3) % 4].push_back(&pairs[i]->second);
  }
  loops.push_back(std::make_unique<EpollLoop>(groups[0], Trigger::level));
  loops.push_back(std::make_unique<EpollLoop>(groups[1], Trigger::edge));
  loops.push_back(std::make_unique<EpollLoop>(groups[2], Trigger::oneshot));
  for (const auto& loop : loops) threads.emplace_back([&loop = *loop] { loop.run(); });
  threads.emplace_back([&loop = *loops.back()] { loop.run(); });
  threads.emplace_back(poll_loop, groups[3]);
}

int run(const Settings& settings) {
  const bool waiting = settings.mode == "waiting";
  Pairs pairs;
  for (unsigned i = 0; i < settings.pairs; ++i)
    pairs.push_back(std::make_unique<Pair>(i % 2 == 0 ? Plan::flood : Plan::ping_pong, waiting,
                                           settings.seed * 1000 + i));
  engine::Node& node = *engine::Node::running();

  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<EpollLoop>> loops;
  std::atomic<bool> finished{false};
  std::thread watchdog(watch, std::cref(pairs), std::cref(finished));
  if (waiting) {
    start_waiting(pairs, threads, loops);
  } else {
    start_blocking(pairs, threads);
  }

  std::mt19937_64 dice(settings.seed);
  const auto end = Clock::now() + std::chrono::duration<double>(settings.seconds);
  uint64_t requests = 0;
  while (Clock::now() < end &&
         (settings.switches == 0 || node.streams().switches_down() < settings.switches)) {
    Pair& pair = *pairs[dice() % pairs.size()];
    pair.tcp.stream(dice() % 2).request_down(engine::Reason::none);
    ++requests;
    // Most requests are a while apart; now and then one hits the middle of the previous switch.
    if (dice() % 4 != 0)
      std::this_thread::sleep_for(std::chrono::microseconds(dice() % (2 * settings.pause_us + 1)));
  }
  bool up = all_come_up(pairs);
  for (unsigned i = 0; up && i < settings.evictions; ++i) up = eviction_brings_all_back(pairs);
  if (!up) dump(pairs);
  const bool settled =
      settings.fail ? failure_takes_all_to_the_kernel(pairs) : floods_settle(pairs);
  if (!settled) dump(pairs);
  g_stop = true;
  for (std::thread& thread : threads) thread.join();
  finished = true;
  watchdog.join();

  uint64_t bytes = 0;
  for (const auto& pair : pairs) bytes += pair->first.bytes() + pair->second.bytes();
  std::printf("%s: seed %llu, %llu requests, %llu switches up, %llu down, %.1f MiB checked\n",
              settings.mode.c_str(), static_cast<unsigned long long>(settings.seed),
              static_cast<unsigned long long>(requests),
              static_cast<unsigned long long>(node.streams().switches_up()),
              static_cast<unsigned long long>(node.streams().switches_down()),
              static_cast<double>(bytes) / (1024 * 1024));
  loops.clear();
  pairs.clear();
  if (!up || !settled) {
    std::fprintf(stderr, "FAILED: a direction did not %s\n",
                 !up ? "come up again" : "come down for good");
    return 1;
  }
  if (node.streams().switches_up() < settings.least ||
      node.streams().switches_down() < settings.least) {
    std::fprintf(stderr, "FAILED: fewer than %llu switches\n",
                 static_cast<unsigned long long>(settings.least));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Moves streams up and down while they are in use, and checks every byte");
  app.add_option("--mode", settings.mode)->check(CLI::IsMember({"blocking", "waiting"}));
  app.add_option("--pairs", settings.pairs, "streams")->check(CLI::Range(1, 256));
  app.add_option("--seconds", settings.seconds, "how long the streams are switched");
  app.add_option("--switches", settings.switches, "stop after so many switches down; 0: never");
  app.add_option("--least", settings.least, "fail when there were fewer switches of a kind");
  app.add_option("--seed", settings.seed);
  app.add_option("--rounds", settings.rounds, "each with streams of its own");
  app.add_flag("--fail", settings.fail, "end each round with a failure of the connection");
  app.add_option("--evictions", settings.evictions,
                 "the connection makes way so often, each round");
  app.add_option("--pause-us", settings.pause_us, "mean time between two requests to move down");
  CLI11_PARSE(app, argc, argv);
  // The sizes are small, so that rings wrap and fill up, and credit runs out, all the time.
  setenv("SIDESTEP_ORB_SIZE", "256K", 0);
  setenv("SIDESTEP_WINDOW_SIZE", "96K", 0);
  for (unsigned i = 0; i < settings.rounds; ++i, ++settings.seed) {
    tests::g_stop = false;
    if (const int result = run(settings); result != 0) return result;
  }
  if (settings.fail && engine::Node::running()->counted().replayed_bytes == 0) {
    std::fprintf(stderr, "FAILED: nothing had to be sent again\n");
    return 1;
  }
  return 0;
}

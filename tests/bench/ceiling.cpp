// Measures the best that threads of two processes can do that answer each other, without sockets
// and without the engine.
//
//   ceiling WAY PAIRS SECONDS
//
// PAIRS threads of one process send 64-byte requests to as many threads of another, each over two
// slots of shared memory, and wait for the response. WAY:
//
//   woken    a waiting thread sleeps on its slot's number (futex(2)); whoever changes it wakes it
//   polling  a waiting thread polls that number for a moment first, yielding the processor now and
//            then
//
// Prints one line of JSON: round trips per second ("rate"), and their times in microseconds, "p50",
// "p99" and "p999".
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/histogram.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using Message = std::array<char, 64>;

/// One direction of a pair.
struct alignas(128) Slot {
  std::atomic<uint32_t> number{0};    ///< of the last message
  std::atomic<uint32_t> sleepers{0};  ///< 1: a thread sleeps on `number`
  Message message{};
};

struct Pair {
  Slot request;
  Slot response;
};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  syscall(SYS_futex, &word, operation, value, nullptr, nullptr, 0);
}

void put(Slot& slot, const Message& message) {
  slot.message = message;
  // seq_cst; pairs with the two in get(): either the waiter sees the new number, or this thread
  // sees that the waiter sleeps.
  slot.number.fetch_add(1, std::memory_order_seq_cst);
  if (slot.sleepers.load(std::memory_order_seq_cst) != 0) futex(slot.number, FUTEX_WAKE, 1);
}

Message get(Slot& slot, uint32_t last, bool polls) {
  constexpr unsigned kYieldEvery = 64;
  const auto has_come = [&] { return slot.number.load(std::memory_order_seq_cst) != last; };
  const auto start = polls ? Clock::now() : Clock::time_point();
  for (unsigned round = 1; polls && !has_come(); ++round) {
    __builtin_ia32_pause();
    if (round % kYieldEvery != 0) continue;
    sched_yield();
    polls = Clock::now() - start < 20us;
  }
  while (!has_come()) {
    slot.sleepers.store(1, std::memory_order_seq_cst);
    if (!has_come()) futex(slot.number, FUTEX_WAIT, last);
    slot.sleepers.store(0, std::memory_order_seq_cst);
  }
  return slot.message;
}

void serve(Pair& pair, bool polls) {
  for (uint32_t number = 0;; ++number) put(pair.response, get(pair.request, number, polls));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("What threads of two processes that answer each other could do at best");
  std::string way;
  size_t count = 1;
  double seconds = 1;
  app.add_option("way", way)->required()->check(CLI::IsMember({"woken", "polling"}));
  app.add_option("pairs", count)->required()->check(CLI::Range(1, 4096));
  app.add_option("seconds", seconds)->required()->check(CLI::Range(0.01, 3600.0));
  CLI11_PARSE(app, argc, argv);
  const bool polls = way == "polling";

  void* const memory = mmap(nullptr, count * sizeof(Pair), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("ceiling: mmap");
    return 1;
  }
  auto* const pairs = static_cast<Pair*>(memory);
  for (size_t i = 0; i < count; ++i) new (&pairs[i]) Pair;
  const pid_t server = fork();
  if (server < 0) {
    std::perror("ceiling: fork");
    return 1;
  }
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < count; ++i) threads.emplace_back([&, i] { serve(pairs[i], polls); });
    threads.clear();  // waits until this process is killed
  }

  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  std::vector<sidestep::bench::Histogram> times(count);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        auto now = Clock::now();
        for (uint32_t number = 0; now < end; ++number) {
          const auto start = now;
          put(pairs[i].request, Message{});
          get(pairs[i].response, number, polls);
          now = Clock::now();
          times[i].add(static_cast<uint64_t>((now - start) / 1ns));
        }
      });
  }
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  for (size_t i = 1; i < count; ++i) times[0].merge(times[i].sparse());
  const auto us = [&](double part) { return static_cast<double>(times[0].quantile(part)) / 1e3; };
  std::printf("{\"rate\": %.0f, \"p50\": %.2f, \"p99\": %.2f, \"p999\": %.2f}\n",
              static_cast<double>(times[0].total()) / seconds, us(0.5), us(0.99), us(0.999));
}

// Threads of several processes that sleep and wake each other while they are disturbed.
//
//   wakes PROCESSES STREAMS SECONDS SEED [no-signals]
//
// Any two of the PROCESSES have STREAMS between them, and on each stream one token goes back and
// forth between two threads. The threads wait in recv() (with and without a time limit), poll(),
// select() and epoll_wait() (for levels and edges). Meanwhile processes are stopped for a while and
// continued, or killed and replaced; threads get signals, or are cancelled while they wait and
// replaced. After a lost wake-up, the token stays where it is for good. `no-signals` is for a
// sanitizer that delays signals through an interceptor of sigaction(), and is not made for a
// library that calls the kernel itself.
//
// Then the program waits until all streams go on, and are on the engine if there is one. Prints
// JSON: "hops", "cancelled", "killed", "stuck", "kernel" (ends of streams that have not left it),
// "wrong", and "failed" (processes that did not end well). 64-bit Linux.
#include <dirent.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/programs/die.hpp"
#include "tests/programs/loopback.hpp"
#include "tests/programs/wakes_worker.hpp"

namespace {

using namespace std::chrono_literals;
using pair::die;
using wakes::Board;
using wakes::kMostProcesses;
using wakes::kMostStreams;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kEnough = 20;  // hops that show that a stream goes on
constexpr auto kPatience = 60s;   // the machine may be busy, and a sanitizer's code is slow

/// Reserves a loopback port for as long as this program runs. Other processes of the same user may
/// listen on it, one after the other.
int take_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address = pair::loopback(0);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd, generic, length) != 0 || getsockname(fd, generic, &length) != 0)
    die("bind");
  return ntohs(address.sin_port);
}

Board& map_board(int fd) {
  void* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) die("mmap");
  return *static_cast<Board*>(memory);
}

class Disturber {
 public:
  Disturber(size_t processes, size_t streams, unsigned seed)
      : processes_(processes), streams_(streams), dice_(seed) {
    memory_ = memfd_create("board", 0);  // the workers inherit it
    if (memory_ < 0 || ftruncate(memory_, sizeof(Board)) != 0) die("memfd_create");
    board_ = &map_board(memory_);
    for (size_t i = 0; i < processes_; ++i) ports_.push_back(take_port());
    workers_.resize(processes_);
    for (size_t i = 0; i < processes_; ++i) start(i);
  }

  void disturb(std::chrono::milliseconds time, bool signals) {
    wait_for_hops(kEnough);  // by then all processes are running
    const auto end = Clock::now() + time;
    while (Clock::now() < end) {
      const size_t victim = dice_() % processes_;
      const auto what = dice_() % 100;
      if (!board_->ready[victim]) {
        std::this_thread::sleep_for(5ms);
      } else if (what < 70) {
        if (signals) signal_any_thread(workers_[victim]);
      } else if (what < 99) {
        kill(workers_[victim], SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(dice_() % 40));
        kill(workers_[victim], SIGCONT);
      } else {
        replace(victim);
      }
      std::this_thread::sleep_for(3ms);
    }
  }

  void finish() {
    const size_t stuck = wait_for_hops(kEnough);
    const size_t kernel = wait_until_up();
    board_->over = true;
    size_t failed = 0;
    for (const pid_t worker : workers_) failed += end_of(worker) != 0;
    uint64_t hops = 0;
    for_all_streams([&](const auto& count) { hops += count; });
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf(
        "{\"hops\": %llu, \"cancelled\": %llu, \"killed\": %llu, \"stuck\": %zu, "
        "\"kernel\": %zu, \"wrong\": %llu, \"failed\": %zu}\n",
        number(hops), number(board_->cancelled), number(killed_), stuck, kernel,
        number(board_->wrong), failed);
  }

 private:
  void start(size_t index) {
    std::vector<std::string> words = {"wakes", "worker", std::to_string(memory_),
                                      std::to_string(index), std::to_string(streams_)};
    for (const int port : ports_) words.push_back(std::to_string(port));
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    if (posix_spawn(&workers_[index], "/proc/self/exe", nullptr, nullptr, pointers.data(),
                    environ) != 0)
      die("posix_spawn");
  }

  void replace(size_t victim) {
    ++board_->life[victim];
    kill(workers_[victim], SIGKILL);
    waitpid(workers_[victim], nullptr, 0);
    board_->ready[victim] = false;
    ++board_->life[victim];
    ++killed_;
    start(victim);
  }

  void signal_any_thread(pid_t process) {
    const std::string path = "/proc/" + std::to_string(process) + "/task";
    DIR* const directory = opendir(path.c_str());
    if (directory == nullptr) return;
    std::vector<pid_t> threads;
    while (const dirent* entry = readdir(directory))
      if (entry->d_name[0] != '.') threads.push_back(std::atoi(entry->d_name));
    closedir(directory);
    if (!threads.empty()) syscall(SYS_tgkill, process, threads[dice_() % threads.size()], SIGUSR1);
  }

  /// Returns the exit code of the worker, or 1 if it was killed or did not end in time.
  static int end_of(pid_t worker) {
    const auto limit = Clock::now() + kPatience;
    for (int status = 0; Clock::now() < limit; std::this_thread::sleep_for(10ms))
      if (waitpid(worker, &status, WNOHANG) == worker)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    kill(worker, SIGKILL);
    waitpid(worker, nullptr, 0);
    return 1;
  }

  template <typename Function>
  void for_all_streams(Function function) {
    for (size_t own = 0; own < processes_; ++own)
      for (size_t other = 0; other < processes_; ++other)
        for (size_t i = 0; i < streams_ && own != other; ++i) function(board_->hops[own][other][i]);
  }

  /// Waits until both ends of each stream have counted `more` further hops, or until kPatience is
  /// over. Returns how many ends have not.
  size_t wait_for_hops(uint64_t more) {
    std::vector<uint64_t> before;
    for_all_streams([&](const auto& count) { before.push_back(count); });
    const auto limit = Clock::now() + kPatience;
    for (;;) {
      size_t left = 0;
      auto known = before.begin();
      for_all_streams([&](const auto& count) { left += count < *known++ + more; });
      if (left == 0 || Clock::now() > limit) return left;
      std::this_thread::sleep_for(20ms);
    }
  }

  /// Waits until no end of a stream is on the kernel, or until kPatience is over. Returns how many
  /// are left there.
  size_t wait_until_up() {
    const auto limit = Clock::now() + kPatience;
    for (;;) {
      size_t left = processes_ * (processes_ - 1) * streams_;
      for (size_t i = 0; i < processes_; ++i) left -= board_->up[i];
      if (left == 0 || Clock::now() > limit) return left;
      std::this_thread::sleep_for(20ms);
    }
  }

  size_t processes_;
  size_t streams_;
  std::minstd_rand dice_;
  int memory_ = -1;
  Board* board_ = nullptr;
  std::vector<int> ports_;
  std::vector<pid_t> workers_;
  uint64_t killed_ = 0;
};

}  // namespace

int main(int count, char** words) {
  if (count > 6 && words[1] == std::string_view("worker")) {
    std::array<int, kMostProcesses> ports{};
    const size_t processes = static_cast<size_t>(count) - 5;
    for (size_t i = 0; i < processes; ++i) ports[i] = std::atoi(words[5 + i]);
    return wakes::work({&map_board(std::atoi(words[2])), std::strtoul(words[3], nullptr, 10),
                        processes, std::strtoul(words[4], nullptr, 10), ports.data()});
  }
  const bool signals = count == 5;
  const bool is_complete = signals || (count == 6 && words[5] == std::string_view("no-signals"));
  const size_t processes = is_complete ? std::strtoul(words[1], nullptr, 10) : 0;
  const size_t streams = is_complete ? std::strtoul(words[2], nullptr, 10) : 0;
  if (processes < 2 || processes > kMostProcesses || streams < 1 || streams > kMostStreams) {
    std::fputs("usage: wakes PROCESSES STREAMS SECONDS SEED [no-signals]\n", stderr);
    return 2;
  }
  Disturber disturber(processes, streams, static_cast<unsigned>(std::atoi(words[4])));
  disturber.disturb(std::chrono::seconds(std::atoi(words[3])), signals);
  disturber.finish();
}

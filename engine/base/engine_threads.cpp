#include "engine/base/engine_threads.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/lock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"

namespace sidestep::engine {

void (*on_end_of_program_threads)() noexcept = nullptr;

namespace {

constexpr size_t kMostThreads = 8;
// The kernel's numbers of the engine threads that run; 0 marks a free place.
constinit std::array<std::atomic<int>, kMostThreads> g_threads{};
constinit std::atomic<unsigned> g_count{0};
constinit std::atomic<uint32_t> g_are_to_end{0};
constinit Mutex g_start_lock;

struct Start {
  void* (*entry)(void*);
  void* argument;
  std::atomic<uint32_t> runs{0};
};

/// The C library's count of its threads: the last thread to end calls exit(). The variable is for
/// debuggers and has no public name. Null if it is not found: then only_engine_threads_are_left()
/// notices the end, but later.
std::atomic<unsigned>* count_of_libc() noexcept {
  static_assert(sizeof(std::atomic<unsigned>) == sizeof(unsigned));
  return static_cast<std::atomic<unsigned>*>(
      dlvsym(RTLD_DEFAULT, "__nptl_nthreads", "GLIBC_PRIVATE"));
}
std::atomic<unsigned>* g_count_of_libc = nullptr;

void* run(void* given) noexcept {
  auto& start = *static_cast<Start*>(given);
  const Start own{start.entry, start.argument, {}};
  const auto number = static_cast<int>(sys::call(SYS_gettid));
  for (auto& place : g_threads) {
    int free = 0;
    // relaxed, here and below: the number is all there is to know.
    if (place.compare_exchange_strong(free, number, std::memory_order_relaxed)) break;
  }
  g_count.fetch_add(1, std::memory_order_relaxed);
  if (g_count_of_libc != nullptr) g_count_of_libc->fetch_sub(1, std::memory_order_relaxed);
  // release pairs with the acquire in start_engine_thread(), after which `start` is gone.
  start.runs.store(1, std::memory_order_release);
  sys::futex_wake(&start.runs, 1);
  own.entry(own.argument);
  // Nobody waits for this thread to end, and then its number may become that of another thread.
  if (!engine_threads_are_to_end())
    for (auto& place : g_threads)
      if (place.load(std::memory_order_relaxed) == number)
        place.store(0, std::memory_order_relaxed);
  // The C library takes this thread out of the count again. If no thread is left, this one calls
  // exit(), as the program's last thread would have.
  if (g_count_of_libc != nullptr) g_count_of_libc->fetch_add(1, std::memory_order_relaxed);
  g_count.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

}  // namespace

bool start_engine_thread(void* (*entry)(void*), void* argument, const char* name) noexcept {
  NoThreadStarts one_at_a_time;
  if (g_count_of_libc == nullptr) g_count_of_libc = count_of_libc();
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 256 * 1024);
  pthread_t thread{};
  Start start{entry, argument, {}};
  const int error = pthread_create(&thread, &attributes, run, &start);
  if (error == 0) {
    pthread_setname_np(thread, name);
    // Until the thread runs, the C library counts on hearing from it. In a copy of this process,
    // made past the C library, it never would: setuid() would wait there forever.
    while (start.runs.load(std::memory_order_acquire) == 0)
      sys::futex_wait(&start.runs, 0, nullptr);
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) log(LogLevel::warn, "cannot start thread %s: %s", name, std::strerror(error));
  return error == 0;
}

unsigned engine_threads() noexcept {
  return g_count.load(std::memory_order_relaxed);
}

void no_engine_threads() noexcept {
  for (auto& place : g_threads) place.store(0, std::memory_order_relaxed);
  g_count.store(0, std::memory_order_relaxed);
  g_are_to_end.store(0, std::memory_order_relaxed);
}

void ask_engine_threads_to_end() noexcept {
  // seq_cst: stored before they are woken.
  g_are_to_end.store(1, std::memory_order_seq_cst);
  sys::futex_wake(&g_are_to_end, static_cast<int>(kMostThreads));
}

bool engine_threads_are_to_end() noexcept {
  return g_are_to_end.load(std::memory_order_seq_cst) != 0;
}

bool sleep_unless_to_end(uint64_t nanoseconds) noexcept {
  const timespec limit{static_cast<time_t>(nanoseconds / 1'000'000'000),
                       static_cast<long>(nanoseconds % 1'000'000'000)};
  if (!engine_threads_are_to_end()) sys::futex_wait(&g_are_to_end, 0, &limit);
  return !engine_threads_are_to_end();
}

bool await_end_of_engine_threads() noexcept {
  // pthread_join() is not enough: for a moment after it, the kernel still counts the thread.
  const uint64_t limit = now_ns() + 10'000'000'000;
  const long process = sys::call(SYS_getpid);
  bool ended = true;
  for (auto& place : g_threads) {
    const int number = place.load(std::memory_order_relaxed);
    if (number == 0) continue;
    while (sys::call(SYS_tgkill, process, number, 0) == 0 && now_ns() < limit) {
      const timespec moment{0, 50'000};
      sys::ppoll(nullptr, 0, &moment, nullptr);
    }
    const bool is_gone = sys::call(SYS_tgkill, process, number, 0) != 0;
    if (is_gone) place.store(0, std::memory_order_relaxed);
    ended = ended && is_gone;
  }
  return ended;
}

NoThreadStarts::NoThreadStarts() noexcept {
  g_start_lock.lock();
}

NoThreadStarts::~NoThreadStarts() {
  g_start_lock.unlock();
}

void NoThreadStarts::forget_after_fork() noexcept {
  g_start_lock.reset_after_fork();
}

bool only_engine_has_other_threads() noexcept {
  struct stat tasks {};
  // A directory has two links more than it has subdirectories. The first thread stays listed, ended
  // or not, until the process is gone.
  return sys::call(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &tasks, 0) == 0 &&
         tasks.st_nlink <= 2 + 1 + engine_threads();
}

namespace {

/// What the kernel tells about the first thread of the process.
class FirstThread {
 public:
  explicit FirstThread(const char* document) noexcept {
    const int fd = sys::open(document, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const long length = sys::read(fd, text_, sizeof text_ - 1);
    sys::close(fd);
    text_[length > 0 ? length : 0] = '\0';
  }
  const char* text() const noexcept { return text_; }

 private:
  char text_[4096] = "";
};

}  // namespace

bool only_engine_threads_are_left() noexcept {
  if (!only_engine_has_other_threads()) return false;
  const FirstThread first("/proc/self/stat");
  // "pid (name) state"
  const char* const name_end = std::strrchr(first.text(), ')');
  return name_end != nullptr && name_end[1] == ' ' && (name_end[2] == 'Z' || name_end[2] == 'X');
}

void die_as_program_threads() noexcept {
  // The C library counts the threads that have returned from their functions. The last one to do so
  // calls exit(), and that can be an engine thread.
  if (g_count_of_libc == nullptr || g_count_of_libc->load(std::memory_order_relaxed) == 0) return;
  const FirstThread first("/proc/self/stat");
  const char* const last_word = std::strrchr(first.text(), ' ');
  int number = last_word != nullptr ? std::atoi(last_word + 1) & 0x7f : 0;
  // The other threads leave no trace. In a sandbox, it was usually its filter that ended them.
  if (number == 0 &&
      std::strstr(FirstThread("/proc/self/status").text(), "\nSeccomp:\t2") != nullptr)
    number = SIGSYS;
  if (number == 0) return;
  const struct {  // the kernel's
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } by_default{};
  const uint64_t none = 0;
  sys::call(SYS_rt_sigaction, number, &by_default, nullptr, sizeof by_default.mask);
  sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);
  sys::call(SYS_tgkill, sys::call(SYS_getpid), sys::call(SYS_gettid), number);
}

void ask_for_short_slices() noexcept {
  // The engine's threads run for microseconds at a time. Since Linux 6.12 a normal thread may say
  // so, and is then scheduled sooner after it wakes; older kernels ignore the request. It takes
  // nothing from the program.
  struct {  // sched_attr of <linux/sched/types.h>, which cannot be included beside <pthread.h>
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } attributes{};
  // Whatever else the program has chosen stays: its policy and its nice value.
  if (sys::call(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) < 0) return;
  constexpr uint32_t kNormal = 0;
  constexpr uint32_t kBatch = 3;
  if (attributes.policy != kNormal && attributes.policy != kBatch) return;
  attributes.size = sizeof attributes;
  attributes.runtime = 100'000;
  sys::call(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace sidestep::engine

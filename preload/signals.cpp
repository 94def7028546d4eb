#include "preload/signals.hpp"

#include <atomic>
#include <ctime>
#include <utility>

#include "engine/base/sys.hpp"
#include "engine/base/thread_end.hpp"
#include "engine/manager/manager.hpp"
#include "engine/node/node.hpp"

namespace sidestep::preload {
namespace {
// The kernel's struct sigaction, which differs from libc's.
struct KernelAction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  uint64_t mask;
};
}  // namespace

namespace {
std::atomic<bool> g_counts{false};
}  // namespace

constinit thread_local HandlersRun handlers_run;
constinit thread_local const void* handler_frame = nullptr;

bool runs_in_handler() noexcept {
  if (handler_frame == nullptr) return false;
  stack_t alternate{};
  if (engine::sys::call(SYS_sigaltstack, nullptr, &alternate) == 0 &&
      (alternate.ss_flags & SS_ONSTACK) != 0)
    return true;
  // The frame of a handler that was left by longjmp() is, as a rule, beyond the end of the stack
  // now.
  if (static_cast<const void*>(__builtin_frame_address(0)) < handler_frame) return true;
  handler_frame = nullptr;
  return false;
}

bool counts_handlers() noexcept {
  // relaxed: a handler that another thread is installing may run before this call or after it.
  return g_counts.load(std::memory_order_relaxed);
}

void start_counting_handlers() noexcept {
  g_counts.store(true, std::memory_order_relaxed);
}

namespace {
constinit thread_local std::atomic<int>* counted_in = nullptr;
/// Takes a thread out of the count if it ends while it is counted.
constinit thread_local engine::ThreadEnd thread_end{count_out};
}  // namespace

void count_in(std::atomic<int>& count) noexcept {
  const engine::HandlersWait first;
  count_out();
  at_thread_end(thread_end);
  // seq_cst, here and below: whoever looks for what the thread has done either sees it, or sees the
  // thread counted.
  count.fetch_add(1, std::memory_order_seq_cst);
  counted_in = &count;
}

void count_out() noexcept {
  if (counted_in != nullptr)
    std::exchange(counted_in, nullptr)->fetch_sub(1, std::memory_order_seq_cst);
}

SignalGate::SignalGate(const sigset_t* mask) noexcept : mask_(mask) {
  if (!counts_handlers()) return;
  // Not the signals that a fault raises: if they were blocked, they would end the process.
  constexpr auto kFaults = [](auto... numbers) { return ((uint64_t{1} << (numbers - 1)) | ...); }(
                               SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS);
  const uint64_t all = ~kFaults;
  closed_ = engine::sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof all) == 0;
  if (closed_ && mask_ == nullptr) mask_ = reinterpret_cast<const sigset_t*>(&before_);
}

SignalGate::~SignalGate() {
  if (closed_)
    engine::sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof before_);
}

namespace {
std::atomic<void (*)() noexcept> pending{nullptr};
std::atomic<bool> done{false};
}  // namespace

void forget_work_after_fork() noexcept {
  pending.store(nullptr, std::memory_order_relaxed);
}

bool run_on_manager(void (*work)() noexcept, int milliseconds) noexcept {
  engine::Node* const node = engine::Node::running();
  if (node == nullptr || engine::Node::is_barred() ||
      node->pid() != static_cast<int>(engine::sys::call(SYS_getpid)))
    return false;
  void (*none)() noexcept = nullptr;
  if (!pending.compare_exchange_strong(none, work, std::memory_order_acq_rel)) return false;
  done.store(false, std::memory_order_relaxed);
  node->manager().run_from_signal([]() noexcept {
    pending.load(std::memory_order_acquire)();
    pending.store(nullptr, std::memory_order_relaxed);
    // Pairs with the acquire below, for what the work has done.
    done.store(true, std::memory_order_release);
  });
  for (int i = 0; i < 10 * milliseconds && !done.load(std::memory_order_acquire); ++i) {
    const timespec moment{0, 100'000};
    engine::sys::ppoll(nullptr, 0, &moment, nullptr);
  }
  return done.load(std::memory_order_acquire);
}

void run_outside_handler(void (*work)() noexcept, int milliseconds) noexcept {
  if (runs_in_handler()) {
    run_on_manager(work, milliseconds);
  } else {
    work();
  }
}

bool all_handlers_restart() noexcept {
  for (int signal = 1; signal <= 64; ++signal) {
    KernelAction action{};
    if (engine::sys::call(SYS_rt_sigaction, signal, nullptr, &action, sizeof action.mask) < 0)
      continue;
    if (action.handler != SIG_DFL && action.handler != SIG_IGN && (action.flags & SA_RESTART) == 0)
      return false;
  }
  return true;
}

void raise_sigpipe() noexcept {
  engine::sys::call(SYS_tgkill, getpid(), engine::sys::call(SYS_gettid), SIGPIPE);
}

}  // namespace sidestep::preload

// Calls that install signal handlers: a handler of the library's own runs them and counts them (see
// signals.hpp). Calls that block signals: faults must not be blocked while the library copies. And
// the call that cancels threads.
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <utility>

#include "engine/base/cancellation.hpp"
#include "engine/base/held_locks.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/progress/waiter.hpp"
#include "preload/export.hpp"
#include "preload/fault_handlers.hpp"
#include "preload/real.hpp"
#include "preload/shim_signal.hpp"
#include "preload/signals.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;

namespace {

/// A handler of the program in one word, so that it can be replaced while it runs. The word holds
/// the address, and those flags the handler was installed with that matter.
class Handler {
 public:
  Handler() = default;
  explicit Handler(const struct sigaction& action)
      : word_(reinterpret_cast<uint64_t>(action.sa_handler) |
              ((action.sa_flags & SA_SIGINFO) != 0 ? kTakesInfo : 0) |
              ((action.sa_flags & SA_RESTART) != 0 ? kRestarts : 0) |
              ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 ? kOnce : 0)) {}
  bool takes_info() const { return (word_ & kTakesInfo) != 0; }
  bool restarts() const { return (word_ & kRestarts) != 0; }
  bool is_for_once() const { return (word_ & kOnce) != 0; }
  uint64_t address() const { return word_ & ~(kTakesInfo | kRestarts | kOnce); }
  Handler with_restart(bool on) const {
    Handler changed = *this;
    changed.word_ = (word_ & ~kRestarts) | (on ? kRestarts : 0);
    return changed;
  }

 private:
  // Program addresses end below these bits.
  static constexpr uint64_t kTakesInfo = uint64_t{1} << 63;
  static constexpr uint64_t kRestarts = uint64_t{1} << 62;
  static constexpr uint64_t kOnce = uint64_t{1} << 61;
  uint64_t word_ = 0;
};

constexpr int kSignals = 65;
std::array<std::atomic<Handler>, kSignals> g_handlers;
static_assert(std::atomic<Handler>::is_always_lock_free);

/// Signals that arrived while the thread held a lock or was in a call (engine/base/held_locks.hpp).
struct Waiting {
  static constexpr unsigned kMost = 4;
  std::atomic<unsigned> count{0};
  std::array<siginfo_t, kMost> signals;
};
thread_local Waiting waiting __attribute__((tls_model("initial-exec")));

/// Called by a handler, which other handlers may interrupt.
bool wait_for_unlock(const siginfo_t& info) noexcept {
  const unsigned place = waiting.count.fetch_add(1, std::memory_order_relaxed);
  if (place >= Waiting::kMost) {
    waiting.count.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  waiting.signals[place] = info;
  engine::held_locks.awaited = true;
  return true;
}

/// What the kernel calls in the place of a handler of the program.
void on_signal(int number, siginfo_t* info, void* context) {
  // acquire pairs with the release in install(); it matters if another thread has just called that.
  const Handler handler = g_handlers[static_cast<size_t>(number)].load(std::memory_order_acquire);
  // A handler that is called only once would not be called a second time, and abort() doesn't wait.
  // Before the library has started, no handler waits.
  const bool can_wait =
      engine::on_last_unlock != nullptr && !handler.is_for_once() && number != SIGABRT;
  const bool in_library = engine::held_locks.count != 0 || engine::held_locks.calls != 0;
  // Counted before the handler runs: the call that it has interrupted has to know.
  ++handlers_run.all;
  if (!handler.restarts()) ++handlers_run.without_restart;
  engine::Sleeper::handler_ran();
  if (in_library && can_wait && wait_for_unlock(*info)) return;
  // A handler that can't wait may never return to the call.
  const unsigned calls = engine::held_locks.calls;
  engine::held_locks.calls = 0;
  const void* const interrupted = std::exchange(handler_frame, __builtin_frame_address(0));
  const engine::FaultMaskOfHandler mask;
  if (handler.takes_info()) {
    reinterpret_cast<void (*)(int, siginfo_t*, void*)>(handler.address())(number, info, context);
  } else {
    reinterpret_cast<void (*)(int)>(handler.address())(number);
  }
  handler_frame = interrupted;
  engine::held_locks.calls = calls;
}

/// True if handlers of this signal are counted. Faults are answered where they happen, and
/// interrupt nothing (fault_handlers.hpp); libc itself refuses the other numbers.
bool is_counted(int number) noexcept {
  switch (number) {
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGSYS:
    case SIGKILL:
    case SIGSTOP:
      return false;
    default:
      return number > 0 && number < kSignals;
  }
}

bool is_function(const struct sigaction& action) noexcept {
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN &&
         action.sa_handler != SIG_ERR;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

/// Turns `action` from what the kernel has into what the program has installed.
void show_as_installed(struct sigaction& action, Handler handler) noexcept {
  if (!is_ours(action)) return;
  action.sa_handler = reinterpret_cast<sighandler_t>(handler.address());
  if (!handler.takes_info()) action.sa_flags &= ~SA_SIGINFO;
}

int install(int number, const struct sigaction* action, struct sigaction* before) noexcept {
  resolve_real();
  if (is_answered(number)) return install_fault_handler(number, action, before);
  if (!is_counted(number)) return real::sigaction(number, action, before);
  std::atomic<Handler>& slot = g_handlers[static_cast<size_t>(number)];
  const Handler handler_before = slot.load(std::memory_order_relaxed);
  struct sigaction own {};
  const bool wrapped = action != nullptr && is_function(*action) && !is_ours(*action);
  if (wrapped) {
    start_counting_handlers();
    own = *action;
    own.sa_sigaction = on_signal;
    own.sa_flags |= SA_SIGINFO;
    // Stored before the handler is installed; one that runs in between does so as if its signal had
    // come a moment later.
    slot.store(Handler(*action), std::memory_order_release);
  }
  const int result = real::sigaction(number, wrapped ? &own : action, before);
  if (result != 0 && wrapped) slot.store(handler_before, std::memory_order_release);
  if (result == 0 && before != nullptr) show_as_installed(*before, handler_before);
  return result;
}

/// Called after libc has installed a handler by itself: makes it one of ours. `result`: the
/// previous handler, as libc reports it.
sighandler_t take_over(int number, sighandler_t result) noexcept {
  if (is_answered(number)) return take_over_fault_handler(number, result);
  if (!is_counted(number) || result == SIG_ERR) return result;
  const int saved = errno;
  const Handler before = g_handlers[static_cast<size_t>(number)].load(std::memory_order_relaxed);
  struct sigaction now {};
  if (real::sigaction(number, nullptr, &now) == 0 && is_function(now)) {
    if (is_ours(now)) {  // perhaps with other flags
      g_handlers[static_cast<size_t>(number)].store(
          before.with_restart((now.sa_flags & SA_RESTART) != 0), std::memory_order_release);
    } else {
      install(number, &now, nullptr);
    }
  }
  errno = saved;
  struct sigaction ours {};
  ours.sa_sigaction = on_signal;  // the same place in libc's union
  return result == ours.sa_handler ? reinterpret_cast<sighandler_t>(before.address()) : result;
}

}  // namespace

void sidestep::preload::raise_waiting_signals() noexcept {
  if (engine::held_locks.count != 0 || engine::held_locks.calls != 0) return;
  const int saved = errno;
  const uint64_t all = ~uint64_t{0};
  uint64_t before = 0;
  engine::sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
  engine::held_locks.awaited = false;
  uint64_t waited = 0;
  const long process = engine::sys::call(SYS_getpid);
  const long thread = engine::sys::call(SYS_gettid);
  for (unsigned i = 0; i < waiting.count.load(std::memory_order_relaxed); ++i) {
    siginfo_t& info = waiting.signals[i];
    waited |= uint64_t{1} << (info.si_signo - 1);
    if (engine::sys::call(SYS_rt_tgsigqueueinfo, process, thread, info.si_signo, &info) < 0)
      engine::sys::call(SYS_tgkill, process, thread, info.si_signo);
  }
  waiting.count.store(0, std::memory_order_relaxed);
  // The handlers run here. A signal that came in a call with a mask of its own (ppoll) may be
  // blocked by the thread itself.
  const uint64_t meanwhile = before & ~waited;
  engine::sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &meanwhile, nullptr, sizeof meanwhile);
  if (meanwhile != before)
    engine::sys::call(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, sizeof before);
  errno = saved;
}

SIDESTEP_EXPORT int sigaction(int number, const struct sigaction* action,
                              struct sigaction* before) noexcept {
  return install(number, action, before);
}

SIDESTEP_EXPORT int pthread_cancel(pthread_t thread) {
  resolve_real();
  // seq_cst: see the records in engine/base/cancellation.cpp.
  engine::threads_are_cancelled.store(true, std::memory_order_seq_cst);
  const int result = real::pthread_cancel(thread);
  if (result == 0) engine::end_sleep_of_cancelled(thread);
  return result;
}

SIDESTEP_EXPORT sighandler_t signal(int number, sighandler_t handler) noexcept {
  resolve_real();
  return take_over(number, real::signal(number, handler));
}

SIDESTEP_EXPORT sighandler_t ssignal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}

SIDESTEP_EXPORT sighandler_t bsd_signal(int number, sighandler_t handler) noexcept {
  return signal(number, handler);
}

SIDESTEP_EXPORT sighandler_t sysv_signal(int number, sighandler_t handler) noexcept {
  resolve_real();
  return take_over(number, real::sysv_signal(number, handler));
}

SIDESTEP_EXPORT sighandler_t __sysv_signal(int number, sighandler_t handler) noexcept {
  return sysv_signal(number, handler);
}

SIDESTEP_EXPORT sighandler_t sigset(int number, sighandler_t handler) noexcept {
  resolve_real();
  engine::forget_fault_mask();  // SIG_HOLD
  return take_over(number, real::sigset(number, handler));
}

SIDESTEP_EXPORT int sigignore(int number) noexcept {
  struct sigaction ignores {};
  ignores.sa_handler = SIG_IGN;
  return install(number, &ignores, nullptr);
}

/// For the calls that change the thread's mask (engine/base/user_copy.hpp). A child of vfork() may
/// make such a call in the memory of a thread that the call does not concern, so the library
/// forgets the mask instead of learning it.
static void note_blocked(int how, const sigset_t* set) noexcept {
  if (set != nullptr && how != SIG_UNBLOCK &&
      (sigismember(set, SIGSEGV) == 1 || sigismember(set, SIGBUS) == 1))
    engine::forget_fault_mask();
}

SIDESTEP_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  resolve_real();
  const int result = real::pthread_sigmask(how, set, before);
  if (result == 0) note_blocked(how, set);
  return result;
}

SIDESTEP_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* before) noexcept {
  resolve_real();
  const int result = real::sigprocmask(how, set, before);
  if (result == 0) note_blocked(how, set);
  return result;
}

SIDESTEP_EXPORT int sigblock(int mask) noexcept {
  resolve_real();
  engine::forget_fault_mask();
  return real::sigblock(mask);
}

SIDESTEP_EXPORT int sigsetmask(int mask) noexcept {
  resolve_real();
  engine::forget_fault_mask();
  return real::sigsetmask(mask);
}

SIDESTEP_EXPORT int sighold(int number) noexcept {
  resolve_real();
  engine::forget_fault_mask();
  return real::sighold(number);
}

SIDESTEP_EXPORT int siginterrupt(int number, int interrupts) noexcept {
  resolve_real();
  const int result = real::siginterrupt(number, interrupts);
  take_over(number, SIG_DFL);
  return result;
}

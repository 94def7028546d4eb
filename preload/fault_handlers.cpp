#include "preload/fault_handlers.hpp"

#include <array>
#include <atomic>
#include <cerrno>

#include "engine/base/lock.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "preload/context.hpp"
#include "preload/real.hpp"

namespace sidestep::preload {
namespace {

/// What the program has installed. One word holds the handler and whether it is called only once,
/// so that both can be replaced while the handler runs; program addresses end below that bit.
struct Installed {
  static constexpr uint64_t kOnce = uint64_t{1} << 63;
  std::atomic<uint64_t> word{0};
  std::atomic<int> flags{0};

  static uint64_t word_of(const struct sigaction& action) noexcept {
    return reinterpret_cast<uint64_t>(action.sa_handler) |
           ((action.sa_flags & static_cast<int>(SA_RESETHAND)) != 0 ? kOnce : 0);
  }
};

std::array<Installed, 2> g_installed;
std::atomic<bool> g_begun{false};
// Makes what is installed and what is known of it change together. The handler does not take it.
engine::Mutex g_lock;

Installed& installed(int number) noexcept {
  return g_installed[number == SIGSEGV ? 0 : 1];
}

/// True for a signal that was sent, by kill(2) and the like, and for a report of bad memory that
/// nobody has touched yet: no instruction would raise it once more.
bool is_asynchronous(const siginfo_t& info) noexcept {
  return info.si_code <= 0 || (info.si_signo == SIGBUS && info.si_code == BUS_MCEERR_AO);
}

/// Acts as if nobody had installed anything.
void do_default(int number, siginfo_t* info) noexcept {
  struct sigaction nothing {};
  nothing.sa_handler = SIG_DFL;
  real::sigaction(number, &nothing, nullptr);
  if (!is_asynchronous(*info)) return;  // the instruction runs once more
  // The signal arrives when this handler, during which it is blocked, has returned.
  const long process = engine::sys::call(SYS_getpid);
  const long thread = engine::sys::call(SYS_gettid);
  if (engine::sys::call(SYS_rt_tgsigqueueinfo, process, thread, number, info) < 0)
    engine::sys::call(SYS_tgkill, process, thread, number);
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (engine::answer_fault(*info, context)) return;
  Installed& program = installed(number);
  // acquire pairs with the release in install(), in case another thread has just called it.
  uint64_t word = program.word.load(std::memory_order_acquire);
  if ((word & Installed::kOnce) != 0)
    program.word.compare_exchange_strong(word, 0, std::memory_order_relaxed);
  const uint64_t address = word & ~Installed::kOnce;
  const auto handler = reinterpret_cast<sighandler_t>(address);
  if (handler == SIG_IGN && is_asynchronous(*info)) return;
  if (handler == SIG_DFL || handler == SIG_IGN) {
    do_default(number, info);
    return;
  }
  const engine::FaultMaskOfHandler mask;
  // The kernel, too, passes all three: a handler that takes one argument ignores the others.
  reinterpret_cast<void (*)(int, siginfo_t*, void*)>(address)(number, info, context);
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_fault;
}

struct sigaction ours_before(const struct sigaction& action) noexcept {
  struct sigaction own = action;
  if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
    own = {};
    // If the stack is exhausted, the alternate one may do.
    own.sa_flags = SA_ONSTACK | SA_RESTART;
  }
  own.sa_sigaction = on_fault;
  own.sa_flags = (own.sa_flags | SA_SIGINFO) & ~static_cast<int>(SA_RESETHAND);
  return own;
}

/// The caller holds g_lock, or cannot get it.
int install(int number, const struct sigaction& action, struct sigaction* before) noexcept {
  Installed& program = installed(number);
  const uint64_t word = program.word.load(std::memory_order_relaxed);
  const int flags = program.flags.load(std::memory_order_relaxed);
  const struct sigaction own = ours_before(action);
  // Stored before the call: a handler that runs in between does so as if its signal had come a
  // moment later.
  program.word.store(Installed::word_of(action), std::memory_order_release);
  program.flags.store(action.sa_flags, std::memory_order_relaxed);
  const int result = real::sigaction(number, &own, before);
  if (result != 0) {
    program.word.store(word, std::memory_order_release);
    program.flags.store(flags, std::memory_order_relaxed);
  }
  if (result == 0 && before != nullptr && is_ours(*before)) {
    before->sa_handler = reinterpret_cast<sighandler_t>(word & ~Installed::kOnce);
    before->sa_flags = flags;
  }
  return result;
}

/// Turns `action` from what the kernel has into what the program has installed.
void show_as_installed(int number, struct sigaction& action) noexcept {
  if (!is_ours(action)) return;
  const Installed& program = installed(number);
  const uint64_t word = program.word.load(std::memory_order_relaxed);
  action.sa_handler = reinterpret_cast<sighandler_t>(word & ~Installed::kOnce);
  action.sa_flags = program.flags.load(std::memory_order_relaxed);
}

/// Puts the library's handler in front of whatever is installed, which is the program's.
void put_in_front() noexcept {
  for (const int number : {SIGSEGV, SIGBUS}) {
    struct sigaction now {};
    if (real::sigaction(number, nullptr, &now) == 0 && !is_ours(now)) install(number, now, nullptr);
  }
}

}  // namespace

void begin_fault_handlers() noexcept {
  resolve_real();
  {
    const engine::GuardUnlessStuck guard(g_lock);
    put_in_front();
    // release pairs with the acquire in is_answered() and its kin.
    g_begun.store(true, std::memory_order_release);
  }
  engine::faults_are_answered();
}

bool is_answered(int number) noexcept {
  // acquire: the caller sees what begin_fault_handlers() has noted.
  return (number == SIGSEGV || number == SIGBUS) && g_begun.load(std::memory_order_acquire);
}

int install_fault_handler(int number, const struct sigaction* action,
                          struct sigaction* before) noexcept {
  // A child of vfork() shares this memory, but not what is installed: that is for the next program.
  if (action == nullptr || is_ours(*action) || is_vfork_child()) {
    const int result = real::sigaction(number, action, before);
    if (result == 0 && before != nullptr) show_as_installed(number, *before);
    return result;
  }
  const struct sigaction copy = *action;
  const engine::GuardUnlessStuck guard(g_lock);
  return install(number, copy, before);
}

sighandler_t take_over_fault_handler(int number, sighandler_t result) noexcept {
  if (result == SIG_ERR || is_vfork_child()) return result;
  const int saved = errno;
  uint64_t word = 0;
  {
    const engine::GuardUnlessStuck guard(g_lock);
    Installed& program = installed(number);
    word = program.word.load(std::memory_order_relaxed);
    struct sigaction now {};
    if (real::sigaction(number, nullptr, &now) == 0) {
      if (is_ours(now)) {  // perhaps with other flags
        const int flags = program.flags.load(std::memory_order_relaxed);
        program.flags.store((flags & ~SA_RESTART) | (now.sa_flags & SA_RESTART),
                            std::memory_order_relaxed);
      } else {
        install(number, now, nullptr);
      }
    }
  }
  errno = saved;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;  // the same place in libc's union
  return result == ours.sa_handler ? reinterpret_cast<sighandler_t>(word & ~Installed::kOnce)
                                   : result;
}

void leave_ignored_faults() noexcept {
  if (!g_begun.load(std::memory_order_acquire)) return;
  for (const int number : {SIGSEGV, SIGBUS}) {
    const uint64_t word = installed(number).word.load(std::memory_order_relaxed);
    if (word != reinterpret_cast<uint64_t>(SIG_IGN)) continue;
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    real::sigaction(number, &ignored, nullptr);
  }
}

void answer_left_faults() noexcept {
  if (!g_begun.load(std::memory_order_acquire) || is_vfork_child()) return;
  const int saved = errno;
  {
    const engine::GuardUnlessStuck guard(g_lock);
    put_in_front();
  }
  errno = saved;
}

void forget_fault_handlers_after_fork() noexcept {
  g_lock.reset_after_fork();
}

}  // namespace sidestep::preload

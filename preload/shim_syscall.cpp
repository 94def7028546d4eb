// Through syscall(), the C library offers every call of the kernel. The shim must know what such a
// call does to descriptors, to the process and to its rights: libuv (Node.js) closes its sockets
// this way, and the next descriptor with the number may be a file. Calls that move bytes or wait go
// to shim_syscall_io.cpp.
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstring>
#include <optional>

#include "engine/base/engine_threads.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/descriptor.hpp"
#include "preload/export.hpp"
#include "preload/fault_handlers.hpp"
#include "preload/libc_result.hpp"
#include "preload/process.hpp"
#include "preload/real.hpp"
#include "preload/retirement.hpp"
#include "preload/rights.hpp"
#include "preload/shim_fd.hpp"
#include "preload/shim_syscall_io.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

long in_kernel(long number, const long (&word)[6]) noexcept {
  return as_libc(sys::call(number, word[0], word[1], word[2], word[3], word[4], word[5]));
}

/// What the caller and the child will have in common.
class Common {
 public:
  Common(unsigned long flags, bool has_own_stack) noexcept : flags_(flags) {
    // A child that goes on with this stack, in this memory, would destroy what its parent returns
    // to. So it gets a copy; the parent waits for it all the same.
    if (is_set(CLONE_VM) && is_set(CLONE_VFORK) && !has_own_stack)
      flags_ &= ~static_cast<unsigned long>(CLONE_VM);
  }
  unsigned long flags() const noexcept { return flags_; }
  bool is_thread() const noexcept { return is_set(CLONE_THREAD); }
  bool is_copy() const noexcept { return !is_set(CLONE_VM); }
  bool closes_descriptors() const noexcept { return !is_set(CLONE_FILES); }
  /// True if another process goes on in this memory, or with these descriptors, beside this one.
  bool needs_retirement() const noexcept {
    return !is_thread() && (is_copy() ? is_set(CLONE_FILES) : !is_set(CLONE_VFORK));
  }

 private:
  bool is_set(unsigned long flag) const noexcept { return (flags_ & flag) != 0; }
  unsigned long flags_;
};

void retire_if_shared(const Common& common) noexcept {
  if (common.needs_retirement()) retire_engine(engine::Reason::shared_memory, Retirement::for_good);
}

/// `call` makes the child, and returns in the child as well, unless that has a stack of its own.
template <typename Call>
long cloned(const Common& common, bool has_own_stack, const Call& call) noexcept {
  if (common.is_thread()) return call();
  retire_if_shared(common);
  if (!common.is_copy()) return call();
  if (has_own_stack) {
    before_fork();  // settle_copy() does the rest
    const long pid = call();
    after_fork_in_parent();
    return pid;
  }
  const engine::NoThreadStarts whole;
  return fork_as(call, common.closes_descriptors());
}

/// fork() by its number. libc's fork handlers do not hear of such a call either.
long fork_by_number(unsigned long flags) noexcept {
  const Common common(flags, false);
  return as_libc(cloned(common, false, [&] {
    return sys::call(SYS_clone, common.flags() | SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  }));
}

long clone_by_number(const long (&word)[6]) noexcept {
  const bool has_own_stack = word[1] != 0;
  const Common common(static_cast<unsigned long>(word[0]), has_own_stack);
  return as_libc(cloned(common, has_own_stack, [&] {
    return sys::call(SYS_clone, common.flags(), word[1], word[2], word[3], word[4]);
  }));
}

long clone3_by_number(const long (&word)[6]) noexcept {
  // clone_args of <linux/sched.h>, which cannot be included beside <sched.h>: flags, pidfd,
  // child_tid, parent_tid, exit_signal, stack, ...
  constexpr size_t kStack = 5;
  constexpr size_t kFirstSize = 64;
  uint64_t given[32]{};
  const auto size = static_cast<size_t>(word[1]);
  const auto* const place = reinterpret_cast<const void*>(word[0]);
  // The kernel says what is wrong with other arguments.
  if (size < kFirstSize || size > sizeof given || !engine::is_readable(place, size))
    return in_kernel(SYS_clone3, word);
  std::memcpy(given, place, size);
  const bool has_own_stack = given[kStack] != 0;
  const Common common(given[0], has_own_stack);
  given[0] = common.flags();
  return as_libc(cloned(common, has_own_stack, [&] { return sys::call(SYS_clone3, given, size); }));
}

/// exit(2) ends one thread, or the process if that thread is the program's only one.
void before_thread_exit(long& number) noexcept {
  if (engine::Node::running() == nullptr || engine::Node::is_barred() ||
      !engine::only_engine_has_other_threads())
    return;
  end_of_process();
  if (sys::call(SYS_gettid) == sys::call(SYS_getpid)) number = SYS_exit_group;
}

struct ClonedChild {
  int (*function)(void*);
  void* argument;
  bool closes_descriptors;
  std::optional<engine::NoThreadStarts> whole;
};

/// Runs in the child, which has a copy of the parent's memory.
int begin_child(void* given) {
  auto& child = *static_cast<ClonedChild*>(given);
  become_child(child.closes_descriptors);
  child.whole.reset();
  const int status = child.function(child.argument);
  end_of_process();  // libc ends the child past the shim
  return status;
}

}  // namespace

SIDESTEP_EXPORT long syscall(long number, ...) noexcept {
  va_list arguments;
  va_start(arguments, number);
  long word[6];  // the kernel does not look at words that were not passed
  for (long& one : word) one = va_arg(arguments, long);
  va_end(arguments);
  const auto first = static_cast<int>(word[0]);
  const auto second = static_cast<int>(word[1]);
  const auto third = static_cast<int>(word[2]);
  switch (number) {
    case SYS_close:
      // Not through close(), where a thread may be canceled.
      if (is_ours(first)) return fail(EBADF);
      forget_descriptor(first);
      break;
    case SYS_close_range:
      return close_range(static_cast<unsigned>(first), static_cast<unsigned>(second), third);
    case SYS_dup:
      return dup(first);
#ifdef SYS_dup2
    case SYS_dup2:
      return dup2(first, second);
#endif
    case SYS_dup3:
      return dup3(first, second, third);
#ifdef SYS_fork
    case SYS_fork:
      return fork_by_number(0);
    case SYS_vfork:
      return fork_by_number(CLONE_VM | CLONE_VFORK);
#endif
    case SYS_clone:
      return clone_by_number(word);
    case SYS_clone3:
      return clone3_by_number(word);
    case SYS_execve:
    case SYS_execveat: {
      leave_ignored_faults();
      const long result = before_exec() ? in_kernel(number, word) : -1;
      answer_left_faults();
      return result;
    }
    case SYS_rt_sigprocmask:
      engine::forget_fault_mask();
      break;
    case SYS_exit_group:
      end_of_process();
      break;
    case SYS_exit:
      before_thread_exit(number);
      break;
    case SYS_unshare:
    case SYS_setns:
    case SYS_capset:
    case SYS_prctl:
    case SYS_seccomp:
    case SYS_landlock_restrict_self:
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setgroups: {
      const RightsCall call(number, word);
      const long result = in_kernel(number, word);
      call.returned(result);
      return result;
    }
    default:
      if (long result = 0; route_io_syscall(number, word, result)) return result;
      break;
  }
  // Does not resolve the call here: malloc may need syscall() to start, and dlsym() needs malloc.
  if (g_resolved.load(std::memory_order_acquire))
    return real::syscall(number, word[0], word[1], word[2], word[3], word[4], word[5]);
  return in_kernel(number, word);
}

namespace {

int clone_by_name(int (*function)(void*), void* stack, int flags, void* argument,
                  va_list others) noexcept {
  auto* const parent_tid = va_arg(others, pid_t*);
  void* const tls = va_arg(others, void*);
  auto* const child_tid = va_arg(others, pid_t*);
  resolve_real();
  const Common common(static_cast<unsigned>(flags), true);
  retire_if_shared(common);
  if (!common.is_copy() || function == nullptr || stack == nullptr)
    return real::clone(function, stack, flags, argument, parent_tid, tls, child_tid);
  before_fork();
  ClonedChild child{function, argument, common.closes_descriptors(), {}};
  child.whole.emplace();
  const int pid = real::clone(begin_child, stack, flags, &child, parent_tid, tls, child_tid);
  after_fork_in_parent();
  return pid;
}

}  // namespace

SIDESTEP_EXPORT int clone(int (*function)(void*), void* stack, int flags, void* argument,
                          ...) noexcept {
  va_list others;
  va_start(others, argument);
  const int pid = clone_by_name(function, stack, flags, argument, others);
  va_end(others);
  return pid;
}

SIDESTEP_EXPORT int __clone(int (*function)(void*), void* stack, int flags, void* argument,
                            ...) noexcept {
  va_list others;
  va_start(others, argument);
  const int pid = clone_by_name(function, stack, flags, argument, others);
  va_end(others);
  return pid;
}

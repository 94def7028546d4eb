// Calls that take rights from the calling thread, and what they mean for the engine's threads.
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include "engine/base/engine_threads.hpp"
#include "engine/base/sys.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/context.hpp"
#include "preload/export.hpp"
#include "preload/libc_result.hpp"
#include "preload/real.hpp"
#include "preload/retirement.hpp"
#include "preload/rights.hpp"

using namespace sidestep::preload;
namespace engine = sidestep::engine;
namespace sys = sidestep::engine::sys;

namespace {

constexpr unsigned long kFilter = 1;  // SECCOMP_SET_MODE_FILTER; SECCOMP_SET_MODE_STRICT is 0

bool engine_runs() noexcept {
  return engine::Node::running() != nullptr && !engine::Node::is_barred();
}

/// Returns `for_good` unless `all_the_same`: from now on, one thread of several has its own table
/// of descriptors, or its own network, so numbers and addresses no longer say which stream is
/// meant.
Retirement of_one_of(bool all_the_same) noexcept {
  return all_the_same ? Retirement::until_fork : Retirement::for_good;
}

void before_unshare(unsigned long flags) noexcept {
  // The engine uses none of these, or they concern children.
  constexpr unsigned long kHarmless = CLONE_FS | CLONE_SYSVSEM | CLONE_NEWPID | CLONE_NEWUTS |
                                      CLONE_NEWIPC | CLONE_NEWCGROUP | 0x80 /* CLONE_NEWTIME */;
  if ((flags & ~kHarmless) == 0) return;
  const bool divides = (flags & (CLONE_FILES | CLONE_NEWNET)) != 0;
  retire_engine(engine::Reason::unshare,
                of_one_of(!divides || engine::only_engine_has_other_threads()));
}

void before_setns(unsigned long kinds) noexcept {
  constexpr unsigned long kHarmless =
      CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWCGROUP | 0x80 /* CLONE_NEWTIME */;
  if (kinds != 0 && (kinds & ~kHarmless) == 0) return;
  const bool divides = kinds == 0 || (kinds & CLONE_NEWNET) != 0;
  retire_engine(engine::Reason::setns,
                of_one_of(!divides || engine::only_engine_has_other_threads()));
}

/// False if a call with these arguments takes no capability away, or fails.
bool loses_capability(const void* header, const void* data) noexcept {
  if (!engine::is_readable(header, sizeof(__user_cap_header_struct))) return false;
  auto of_caller = *static_cast<const __user_cap_header_struct*>(header);
  const size_t words = of_caller.version == _LINUX_CAPABILITY_VERSION_1 ? 1 : 2;
  if (!engine::is_readable(data, words * sizeof(__user_cap_data_struct))) return false;
  of_caller.pid = 0;
  __user_cap_data_struct now[2]{};
  if (sys::call(SYS_capget, &of_caller, now) != 0) return false;
  const auto* next = static_cast<const __user_cap_data_struct*>(data);
  for (size_t i = 0; i < words; ++i)
    if ((now[i].effective & ~next[i].effective) != 0 ||
        (now[i].permitted & ~next[i].permitted) != 0 ||
        (now[i].inheritable & ~next[i].inheritable) != 0)
      return true;
  return false;
}

/// True if the call may restrict something that was not restricted before, and for the calling
/// thread only.
bool prctl_restricts(const long (&word)[6]) noexcept {
  const auto get = [](int option, long argument = 0) {
    return sys::call(SYS_prctl, option, argument, 0, 0, 0);
  };
  switch (static_cast<int>(word[0])) {
    case PR_SET_NO_NEW_PRIVS:
      return get(PR_GET_NO_NEW_PRIVS) == 0;
    case PR_CAPBSET_DROP:
      return get(PR_CAPBSET_READ, word[1]) == 1;
    case PR_SET_SECUREBITS:
      return get(PR_GET_SECUREBITS) != word[1];
    case PR_CAP_AMBIENT:
      return word[1] == PR_CAP_AMBIENT_LOWER || word[1] == PR_CAP_AMBIENT_CLEAR_ALL;
    default:
      return false;
  }
}

/// True if the call puts the thread into a sandbox. A null filter only asks whether the kernel has
/// filters.
bool is_sandbox(long number, const long (&word)[6]) noexcept {
  if (number == SYS_seccomp)
    return word[0] == 0 || (static_cast<unsigned long>(word[0]) == kFilter && word[2] != 0);
  return number == SYS_prctl && word[0] == PR_SET_SECCOMP &&
         (word[1] == 1 || (word[1] == 2 && word[2] != 0));
}

}  // namespace

RightsCall::RightsCall(long number, const long (&word)[6]) noexcept {
  switch (number) {
    case SYS_unshare:
      before_unshare(static_cast<unsigned long>(word[0]));
      return;
    case SYS_setns:
      before_setns(static_cast<unsigned long>(word[1]));
      return;
    case SYS_capset:
      if (engine_runs() && loses_capability(reinterpret_cast<const void*>(word[0]),
                                            reinterpret_cast<const void*>(word[1])))
        retire_engine(engine::Reason::capabilities, Retirement::until_fork);
      return;
    case SYS_landlock_restrict_self:
      retire_engine(engine::Reason::landlock, Retirement::until_fork);
      return;
    // Made past the C library, these concern the calling thread only.
    case SYS_setuid:
    case SYS_setgid:
    case SYS_setreuid:
    case SYS_setregid:
    case SYS_setresuid:
    case SYS_setresgid:
    case SYS_setgroups:
      retire_engine(engine::Reason::thread_user, Retirement::until_fork);
      return;
    case SYS_seccomp:
    case SYS_prctl:
      if (is_sandbox(number, word)) {
        is_sandbox_ = !is_vfork_child();
        retire_engine(engine::Reason::seccomp, Retirement::until_fork);
      } else if (number == SYS_prctl && engine_runs() && prctl_restricts(word)) {
        retire_engine(engine::Reason::privileges, Retirement::until_fork);
      }
      return;
    default:
      return;
  }
}

void RightsCall::returned(long result) const noexcept {
  // What the engine needs may be forbidden, and asking for it may end the process. A filter that
  // was there before the program belongs to a container or to a service, and is not noticed here.
  if (is_sandbox_ && result >= 0) engine::Node::bar(true);
}

SIDESTEP_EXPORT int unshare(int flags) noexcept {
  resolve_real();
  const RightsCall call(SYS_unshare, {flags, 0, 0, 0, 0, 0});
  return real::unshare(flags);
}

SIDESTEP_EXPORT int setns(int fd, int kinds) noexcept {
  resolve_real();
  const RightsCall call(SYS_setns, {fd, kinds, 0, 0, 0, 0});
  return real::setns(fd, kinds);
}

SIDESTEP_EXPORT int capset(void* header, const void* data) noexcept {
  resolve_real();
  const RightsCall call(SYS_capset, {sys::word(header), sys::word(data), 0, 0, 0, 0});
  return real::capset(header, data);
}

SIDESTEP_EXPORT int prctl(int option, ...) noexcept {
  va_list arguments;
  va_start(arguments, option);
  long word[6] = {option};  // the kernel does not look at words that were not passed
  for (int i = 1; i < 5; ++i) word[i] = va_arg(arguments, long);
  va_end(arguments);
  const RightsCall call(SYS_prctl, word);
  // Not through `real`, which may not be resolved yet: allocators make this call when they start.
  const long result = sys::call(SYS_prctl, word[0], word[1], word[2], word[3], word[4]);
  call.returned(result);
  return static_cast<int>(as_libc(result));
}

#pragma once
/// SIGSEGV and SIGBUS: the library's handler stands before the program's.
///
/// It answers the faults of copies from and to the program's memory (engine/base/user_copy.hpp).
/// All others are the program's, whose handler it calls with what the kernel has told. It is
/// installed with the flags and the mask of the program's, so that the alternate stack, what is
/// blocked meanwhile and what is restarted are as the program wants them; SA_RESETHAND it does
/// itself. What sigaction() shows is what the program has installed. Where that is nothing, a fault
/// ends the process as ever: the handler takes itself out, and the instruction is run once more.
///
/// In a process that has no stream it is not installed.
#include <csignal>

namespace sidestep::preload {

/// Whether the signal is one of the two, and its handlers concern the library in this process.
bool is_answered(int number) noexcept;

/// sigaction(), of one that is.
int install_fault_handler(int number, const struct sigaction* action,
                          struct sigaction* before) noexcept;

/// After libc has installed something by itself: puts the library's before it. `result`: the
/// handler before, as libc tells it.
sighandler_t take_over_fault_handler(int number, sighandler_t result) noexcept;

/// Before another program takes this one's place: what it inherits of the two is that they are
/// ignored, where the program has said so.
void leave_ignored_faults() noexcept;
/// No other program has: they are answered again. Leaves errno.
void answer_left_faults() noexcept;

/// In the child, where a thread that was installing something is no more.
void forget_fault_handlers_after_fork() noexcept;

}  // namespace sidestep::preload

#pragma once
/// SIGSEGV and SIGBUS: the library's handler stands before the program's.
///
/// The library's handler answers the faults of copies from and to the program's memory
/// (engine/base/user_copy.hpp). All other faults are the program's: it calls the program's handler
/// with what the kernel has passed. It is installed with the flags and the mask of the program's
/// handler, so that the alternate stack, the blocked signals and the restarting of calls are as the
/// program wants them; it implements SA_RESETHAND itself. sigaction() shows the program what the
/// program has installed. If that is nothing, a fault ends the process as usual: the handler
/// removes itself, and the instruction is run once more.
///
/// In a process that has no stream, the handler is not installed.
#include <csignal>

namespace sidestep::preload {

/// Puts the library's handler in front of what the program has installed. Called when the node is
/// about to run.
void begin_fault_handlers() noexcept;

/// True if the signal is one of the two, and its handlers concern the library in this process.
bool is_answered(int number) noexcept;

/// sigaction() for a signal that is_answered().
int install_fault_handler(int number, const struct sigaction* action,
                          struct sigaction* before) noexcept;

/// Called after libc has installed a handler by itself: puts the library's handler in front of it.
/// `result`: the previous handler, as libc reports it.
sighandler_t take_over_fault_handler(int number, sighandler_t result) noexcept;

/// Called before another program takes this one's place: ignores those of the two signals that the
/// program has said to ignore, which is all that the next program inherits of them.
void leave_ignored_faults() noexcept;
/// Called when no other program has taken this one's place: the library answers the signals again.
/// Leaves errno unchanged.
void answer_left_faults() noexcept;

/// Called in the child of a fork, where a thread that was installing a handler no longer exists.
void forget_fault_handlers_after_fork() noexcept;

}  // namespace sidestep::preload

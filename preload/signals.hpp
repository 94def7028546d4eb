#pragma once
/// Signals as a blocking system call would treat them.

namespace sidestep::preload {

/// Whether every handler that is installed now was installed with SA_RESTART: then an interrupted
/// call goes on. With handlers of both kinds it can't be known which one ran, and the call reports
/// EINTR, as programs that install such handlers expect. 64 system calls, after an interruption
/// only.
bool all_handlers_restart() noexcept;

/// SIGPIPE for the calling thread, as a write to a closed socket raises it.
void raise_sigpipe() noexcept;

}  // namespace sidestep::preload

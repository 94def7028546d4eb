#pragma once
/// What the library's start needs of the calls that install signal handlers.

namespace sidestep::preload {

/// Sends the calling thread's waiting signals again: the kernel calls the handlers as it would
/// have. Called when the thread has left its last lock or call (engine::on_last_unlock).
void raise_waiting_signals() noexcept;

}  // namespace sidestep::preload

#pragma once
/// Death by SIGTERM with SIDESTEP_STATS_FILE set.
///
/// A process that leaves SIGTERM alone dies of it without running anything. So that its statistics
/// are not lost, a handler is installed when the first stream is tracked, if the signal has its
/// default action then. A program that installs one of its own replaces ours, and nothing is
/// written at its death but what exit() writes.

namespace sidestep::preload {

/// Does nothing without SIDESTEP_STATS_FILE, and the second time.
void write_stats_on_sigterm() noexcept;

}  // namespace sidestep::preload

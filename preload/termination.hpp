#pragma once
/// Death by SIGTERM with SIDESTEP_STATS_FILE set.
///
/// A process that leaves SIGTERM alone dies of it without running anything. To save its statistics,
/// the library installs a handler when the first stream is tracked, if the signal has its default
/// action at that time. A program that installs a handler of its own replaces ours; then only
/// exit() writes the statistics.

namespace sidestep::preload {

/// Installs the handler. Does nothing without SIDESTEP_STATS_FILE, or when called a second time.
void write_stats_on_sigterm() noexcept;

}  // namespace sidestep::preload

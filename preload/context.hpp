#pragma once
/// What the shim knows about its process: the configuration and whether anything may leave the
/// kernel.
#include "config/config.hpp"
#include "config/rules.hpp"

namespace sidestep::preload {

struct Context {
  config::Config config;
  config::Rules rules;
  bool active = false;  ///< enabled, and a device may be used
};

/// Loaded at the first call, complaints logged then. Thread-safe.
const Context& context() noexcept;

/// Whether the caller is a child of vfork() that still shares the parent's memory: what it does to
/// descriptors is not done to the parent's. One system call, once a node runs.
bool is_vfork_child() noexcept;

/// Writes SIDESTEP_STATS_FILE if it is set and the node has run. Called at every kind of exit.
void write_stats_file() noexcept;

}  // namespace sidestep::preload

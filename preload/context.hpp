#pragma once
/// What the shim knows about its process: the configuration and whether anything may leave the
/// kernel.
#include <string>

#include "config/config.hpp"
#include "config/rules.hpp"

namespace sidestep::preload {

struct Context {
  config::Config config;
  config::Rules rules;
  std::string program_path;  ///< of the executable; empty if it is not known
  bool active = false;       ///< enabled, a device may be used, and no required call is missing
};

/// Returns the context. The first call loads it and logs complaints. Thread-safe.
const Context& context() noexcept;

/// True if the caller is a child of vfork() that still shares the parent's memory: whatever it does
/// to descriptors does not happen to the parent's. Makes one system call once a node runs.
bool is_vfork_child() noexcept;

/// Writes SIDESTEP_STATS_FILE if it is set and the node has run. Called at every kind of exit.
void write_stats_file() noexcept;

}  // namespace sidestep::preload

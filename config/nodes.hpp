#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The list of hosts in SIDESTEP_NODES: `host,host,...`, or `@FILE` with one host a line, where
/// blank lines and what follows a # are ignored. A host is a name or an address of IPv4 or IPv6.
namespace sidestep::config {

/// Whether `nodes` is well formed. For @FILE that is its name only: the file may come later.
bool valid_nodes(std::string_view nodes) noexcept;

/// The hosts that `nodes` names now, in order; a file is read at each call, by raw system calls.
/// Empty if it can't be read. Words that can't be hosts are left out. Any thread; never throws.
std::vector<std::string> node_hosts(std::string_view nodes) noexcept;

}  // namespace sidestep::config

#pragma once

#include <string>
#include <string_view>
#include <vector>

/// The list of hosts in SIDESTEP_NODES: `host,host,...`, or `@FILE` with one host per line. In the
/// file, blank lines and anything after a # are ignored. A host is a name or an IPv4 or IPv6
/// address.
namespace sidestep::config {

/// True if `nodes` is well formed. For @FILE, only the name is checked: the file may be created
/// later.
bool valid_nodes(std::string_view nodes) noexcept;

/// Returns the hosts that `nodes` names now, in order. A file is read at each call, by raw system
/// calls; if it can't be read, the result is empty. Words that can't be hosts are left out. Any
/// thread may call this; it never throws.
std::vector<std::string> node_hosts(std::string_view nodes) noexcept;

}  // namespace sidestep::config

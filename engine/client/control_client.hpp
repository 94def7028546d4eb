#pragma once
/// What a tool that is not a node can ask the nodes of its user on this host.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/control/node_names.hpp"

namespace sidestep::engine {

/// Returns the NIDs of this user's Sidestep nodes that have such names, ascending.
std::vector<uint16_t> local_nodes(const NodeNames& names);

/// Returns the status document (JSON text) of a node of this user; empty if the node has gone or
/// does not answer within `timeout_ms`.
std::string fetch_status(const NodeNames& names, uint16_t nid, int timeout_ms);

}  // namespace sidestep::engine

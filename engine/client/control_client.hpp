#pragma once
/// What a tool that is not a node can ask of the nodes of its user on this host.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/control/node_names.hpp"

namespace sidestep::engine {

/// NIDs of this user's Sidestep nodes that have such names, ascending.
std::vector<uint16_t> local_nodes(const NodeNames& names);

/// The status document (JSON text) of a node of this user; empty when it has gone or does not
/// answer within `timeout_ms`.
std::string fetch_status(const NodeNames& names, uint16_t nid, int timeout_ms);

}  // namespace sidestep::engine

#pragma once
/// The ways to wait: threads that block in their calls, and threads that wait for events.
#include <thread>
#include <vector>

#include "tests/programs/connection.hpp"
#include "tests/programs/options.hpp"

namespace pair {

/// Starts threads that serve the connections until all are done; appends them to `threads`.
void start(Connections& connections, const Options& options, std::vector<std::thread>& threads);

}  // namespace pair

#pragma once
/// A process in the role of a node: obeys the commands that the coordinator sends to its standard
/// input, and answers on its standard output.

namespace sidestep::bench {

/// Runs the node and returns the exit code of the process.
int run_node(unsigned number);

}  // namespace sidestep::bench

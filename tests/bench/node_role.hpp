#pragma once
/// A process that is a node: does what the coordinator says over its standard input, and answers on
/// its standard output.

namespace sidestep::bench {

/// Returns the exit code of the process.
int run_node(unsigned number);

}  // namespace sidestep::bench

// Measures the engine without the shim. Exit codes: 0; 1 if a run failed; 2 for a command line that
// makes no sense.
//
// The same program is the coordinator and, when it starts itself again, every node.
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "tests/bench/coordinator.hpp"
#include "tests/bench/node_role.hpp"

namespace sidestep::bench {
namespace {

int coordinate(const Options& options) {
  try {
    Coordinator coordinator(options);
    fmt::print("{}\n{}\n", title(options), table_head(options));
    std::fflush(stdout);
    std::vector<Result> results;
    for (const uint64_t size : options.sizes) {
      results.push_back(coordinator.measure(size));
      fmt::print("{}\n", table_line(options, results.back()));
      std::fflush(stdout);
    }
    coordinator.finish();
    if (!options.csv.empty()) write_csv(options, results);
    if (!options.json.empty()) write_json(options, results);
    return 0;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace sidestep::bench

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  if (argc == 3 && std::strcmp(argv[1], sidestep::bench::kNodeRole) == 0)
    return sidestep::bench::run_node(static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10)));
  sidestep::bench::Options options;
  int exit_code = 0;
  if (!sidestep::bench::parse_options(argc, argv, options, exit_code))
    return exit_code == 0 ? 0 : 2;
  return sidestep::bench::coordinate(options);
}

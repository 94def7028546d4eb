#pragma once
/// What to measure: the command line of engine_bench as data.
#include <cstdint>
#include <string>
#include <vector>

namespace sidestep::bench {

enum class Pattern { one_way, both_ways, all_to_all, ping_pong };

struct Options {
  unsigned nodes = 2;
  Pattern pattern = Pattern::one_way;
  std::vector<uint64_t> sizes{1, 8, 64, 512, 4096, 65536, 1048576};
  double seconds = 1;
  unsigned streams = 1;  ///< between any two nodes that talk to each other
  unsigned threads = 1;  ///< per node; each serves its share of the streams
  bool raw = false;
  std::string csv;
  std::string json;
};

/// True if two nodes have streams between them.
bool are_joined(const Options& options, unsigned one, unsigned other) noexcept;
/// True if `node` starts messages of its own (the answering side of a ping-pong does not).
bool starts_messages(const Options& options, unsigned node) noexcept;
/// Returns the number of nodes that receive messages.
unsigned receiving_nodes(const Options& options) noexcept;

const char* name_of(Pattern pattern) noexcept;
/// Returns a size as text: "64", "4K", "1M".
std::string size_text(uint64_t size);

/// Returns true if there is something to measure. On false, the process should leave with
/// `exit_code`; everything has been printed.
bool parse_options(int argc, char** argv, Options& options, int& exit_code);

}  // namespace sidestep::bench

#include "tests/bench/options.hpp"

#include <CLI/CLI.hpp>
#include <map>

namespace sidestep::bench {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMaxSize = 16 * kKiB * kKiB;

const std::map<std::string, Pattern>& patterns() {
  static const std::map<std::string, Pattern> all{{"one-way", Pattern::one_way},
                                                  {"both-ways", Pattern::both_ways},
                                                  {"all-to-all", Pattern::all_to_all},
                                                  {"ping-pong", Pattern::ping_pong}};
  return all;
}

/// Returns what is wrong with the combination of options that are valid one by one; empty if
/// nothing is.
std::string conflict(const Options& options) {
  if (options.pattern != Pattern::all_to_all && options.nodes % 2 != 0)
    return "every pattern but all-to-all works on pairs: it needs an even number of --nodes";
  const unsigned streams_of_a_node =
      options.streams * (options.pattern == Pattern::all_to_all ? options.nodes - 1 : 1);
  if (options.threads > streams_of_a_node)
    return "a thread without a stream has nothing to do: raise --streams or lower --threads";
  if (!options.raw) return "";
  if (options.pattern == Pattern::ping_pong) return "--raw throws messages away: no ping-pong";
  if (options.threads != 1 || options.streams != 1)
    return "--raw drives connections, not streams: one thread for each node";
  return "";
}

}  // namespace

bool are_joined(const Options& options, unsigned one, unsigned other) noexcept {
  if (one == other) return false;
  return options.pattern == Pattern::all_to_all || one / 2 == other / 2;
}

bool starts_messages(const Options& options, unsigned node) noexcept {
  const bool one_side =
      options.pattern == Pattern::one_way || options.pattern == Pattern::ping_pong;
  return !one_side || node % 2 == 0;
}

unsigned receiving_nodes(const Options& options) noexcept {
  return options.pattern == Pattern::one_way ? options.nodes / 2 : options.nodes;
}

const char* name_of(Pattern pattern) noexcept {
  switch (pattern) {
    case Pattern::one_way:
      return "one-way";
    case Pattern::both_ways:
      return "both-ways";
    case Pattern::all_to_all:
      return "all-to-all";
    case Pattern::ping_pong:
      return "ping-pong";
  }
  return "";
}

std::string size_text(uint64_t size) {
  if (size >= kKiB * kKiB && size % (kKiB * kKiB) == 0)
    return std::to_string(size / kKiB / kKiB) + "M";
  if (size >= kKiB && size % kKiB == 0) return std::to_string(size / kKiB) + "K";
  return std::to_string(size);
}

bool parse_options(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app{"Measures the engine without the shim: messages between nodes of this host."};
  app.add_option("--nodes", options.nodes, "Nodes, each a process of its own")
      ->check(CLI::Range(2U, 8U))
      ->capture_default_str();
  app.add_option("--pattern", options.pattern, "one-way, both-ways, ping-pong (pairs), all-to-all")
      ->transform(CLI::CheckedTransformer(patterns(), CLI::ignore_case).description(""))
      ->type_name("NAME")
      ->default_str(name_of(options.pattern));
  app.add_option("--sizes", options.sizes, "Bytes of a message, with K and M for 1024 and 1024 K")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false).description(""))
      ->check(CLI::Range(uint64_t{1}, kMaxSize).description(""))
      ->type_name("LIST")
      ->default_str("1,8,64,512,4K,64K,1M");
  app.add_option("--seconds", options.seconds, "Measured time for each size")
      ->check(CLI::Range(0.05, 600.0))
      ->capture_default_str();
  app.add_option("--streams", options.streams, "Streams between two nodes")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "Threads of a node, which share its streams")
      ->check(CLI::Range(1U, 64U))
      ->capture_default_str();
  app.add_flag("--raw", options.raw,
               "No streams: post a full ring again and again, and release what arrives unread");
  app.add_option("--csv", options.csv, "Write the results there")->type_name("FILE");
  app.add_option("--json", options.json, "Write the results there")->type_name("FILE");
  app.footer("The engine takes its settings from SIDESTEP_* (sidestep(7)).");
  try {
    app.parse(argc, argv);
    if (const std::string wrong = conflict(options); !wrong.empty())
      throw CLI::ValidationError(wrong);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
    return false;
  }
  return true;
}

}  // namespace sidestep::bench

#pragma once
/// Shows what the nodes have counted as one line of a table, and as CSV and JSON.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/bench/options.hpp"

namespace sidestep::bench {

struct Result {
  uint64_t size = 0;
  double messages = 0;   ///< per second, received by all nodes together
  double gigabytes = 0;  ///< (1e9 bytes) per second, likewise
  double per_node = 0;   ///< gigabytes per second for each node that receives
  double median_us = 0;  ///< half round trip; 0 unless ping-pong
  double p99_us = 0;
  double fragments_per_request = 0;
  double polls = 0;  ///< per second, of all nodes
  double parks = 0;
  double yields = 0;
  double doorbells = 0;
  double credit_stalls = 0;
  double orb_full = 0;
  double spills = 0;
  double processors = 0;  ///< the number that all nodes together kept busy
  uint64_t lost_wakeups = 0;
};

/// Sums up `answers`, one per node. Throws Failure if nothing was received.
Result summarize(const Options& options, uint64_t size, const std::vector<nlohmann::json>& answers);

std::string title(const Options& options);
std::string table_head(const Options& options);
std::string table_line(const Options& options, const Result& result);

/// Both throw Failure if the file can't be written.
void write_csv(const Options& options, const std::vector<Result>& results);
void write_json(const Options& options, const std::vector<Result>& results);

}  // namespace sidestep::bench

#include "tests/bench/report.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <fstream>

#include "tests/bench/failure.hpp"
#include "tests/bench/histogram.hpp"

namespace sidestep::bench {
namespace {

using nlohmann::json;

/// Returns four significant characters and a unit: "12.3M".
std::string short_number(double value) {
  constexpr std::array<const char*, 4> kUnits{"", "k", "M", "G"};
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) value /= 1000, ++unit;
  const int digits = value >= 99.95 || (unit == 0 && value == std::floor(value)) ? 0
                     : value >= 9.995                                            ? 1
                                                                                 : 2;
  return fmt::format("{:.{}f}{}", value, digits, kUnits[unit]);
}

/// Returns the columns of CSV and JSON.
json as_json(const Options& options, const Result& result) {
  return {{"pattern", name_of(options.pattern)},
          {"mode", options.raw ? "raw" : "streams"},
          {"nodes", options.nodes},
          {"streams", options.streams},
          {"threads", options.threads},
          {"seconds", options.seconds},
          {"size", result.size},
          {"messages_per_s", result.messages},
          {"gb_per_s", result.gigabytes},
          {"gb_per_s_per_node", result.per_node},
          {"half_rtt_median_us", result.median_us},
          {"half_rtt_p99_us", result.p99_us},
          {"fragments_per_work_request", result.fragments_per_request},
          {"polls_per_s", result.polls},
          {"parks_per_s", result.parks},
          {"yields_per_s", result.yields},
          {"doorbells_per_s", result.doorbells},
          {"credit_stalls_per_s", result.credit_stalls},
          {"orb_full_per_s", result.orb_full},
          {"spills_per_s", result.spills},
          {"processors", result.processors},
          {"lost_wakeups", result.lost_wakeups}};
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw Failure(fmt::format("{} can't be written", path));
}

}  // namespace

Result summarize(const Options& options, uint64_t size, const std::vector<json>& answers) {
  Result result;
  result.size = size;
  uint64_t work_requests = 0;
  uint64_t fragments = 0;
  Histogram round_trips;
  for (const json& answer : answers) {
    const double seconds = answer.at("ns").get<double>() / 1e9;
    const auto rate = [&](const char* name) { return answer.at(name).get<double>() / seconds; };
    result.messages += rate("messages");
    result.gigabytes += rate("bytes") / 1e9;
    result.polls += rate("polls");
    result.parks += rate("parks");
    result.yields += rate("yields");
    result.doorbells += rate("doorbells");
    result.credit_stalls += rate("credit_stalls");
    result.orb_full += rate("orb_full");
    result.spills += rate("spills");
    result.processors += rate("processor_ns") / 1e9;
    work_requests += answer.at("work_requests").get<uint64_t>();
    fragments += answer.at("fragments").get<uint64_t>();
    result.lost_wakeups += answer.at("lost_wakeups").get<uint64_t>();
    round_trips.merge(answer.at("round_trips").get<Histogram::Sparse>());
  }
  if (result.gigabytes == 0)
    throw Failure(fmt::format("nothing of {} bytes arrived in {} s", size, options.seconds));
  result.per_node = result.gigabytes / receiving_nodes(options);
  if (work_requests != 0)
    result.fragments_per_request =
        static_cast<double>(fragments) / static_cast<double>(work_requests);
  result.median_us = static_cast<double>(round_trips.quantile(0.5)) / 2000;
  result.p99_us = static_cast<double>(round_trips.quantile(0.99)) / 2000;
  return result;
}

std::string title(const Options& options) {
  if (options.raw)
    return fmt::format("{} nodes, {}, raw: full rings, released unread", options.nodes,
                       name_of(options.pattern));
  return fmt::format("{} nodes, {}, {} {} between two nodes, {} {} in a node", options.nodes,
                     name_of(options.pattern), options.streams,
                     options.streams == 1 ? "stream" : "streams", options.threads,
                     options.threads == 1 ? "thread" : "threads");
}

std::string table_head(const Options& options) {
  std::string head =
      fmt::format("{:>6}  {:>10}  {:>7}  {:>9}", "bytes", "messages/s", "GB/s", "GB/s/node");
  if (options.pattern == Pattern::ping_pong)
    head += fmt::format("  {:>10}  {:>8}", "half RTT", "p99");
  head += fmt::format("  {:>8}  {:>7}  {:>7}  {:>4}", "frags/WR", "polls/s", "parks/s", "CPUs");
  return head + '\n' + std::string(head.size(), '-');
}

std::string table_line(const Options& options, const Result& result) {
  std::string line = fmt::format("{:>6}  {:>10}  {:>7.3f}  {:>9.3f}", size_text(result.size),
                                 short_number(result.messages), result.gigabytes, result.per_node);
  if (options.pattern == Pattern::ping_pong)
    line += fmt::format("  {:>7.2f} us  {:>5.2f} us", result.median_us, result.p99_us);
  line += fmt::format("  {:>8.1f}  {:>7}  {:>7}  {:>4.2f}", result.fragments_per_request,
                      short_number(std::round(result.polls)),
                      short_number(std::round(result.parks)), result.processors);
  if (result.lost_wakeups != 0)
    line += fmt::format("  ! {} sleeps were not ended in time", result.lost_wakeups);
  return line;
}

void write_csv(const Options& options, const std::vector<Result>& results) {
  std::string text;
  for (const Result& result : results) {
    const json columns = as_json(options, result);
    const auto write_line = [&](auto cell) {
      std::string line;
      for (const auto& [name, value] : columns.items())
        line += (line.empty() ? "" : ",") + cell(name, value);
      text += line + '\n';
    };
    if (text.empty()) write_line([](const std::string& name, const json&) { return name; });
    write_line([](const std::string&, const json& value) {
      return value.is_string() ? value.template get<std::string>() : value.dump();
    });
  }
  write_file(options.csv, text);
}

void write_json(const Options& options, const std::vector<Result>& results) {
  json all = json::array();
  for (const Result& result : results) all.push_back(as_json(options, result));
  write_file(options.json, all.dump(1) + '\n');
}

}  // namespace sidestep::bench

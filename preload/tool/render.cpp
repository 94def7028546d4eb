#include "preload/tool/render.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace sidestep::tool {
namespace {

using nlohmann::json;

constexpr size_t kWidth = 100;
constexpr size_t kLongestAddress = 21;  // 255.255.255.255:65535; IPv6 gets a line of its own
constexpr size_t kProgramWidth = 20;

json const kNoArray = json::array();
json const kNoObject = json::object();

json const* find(json const& document, char const* path) {
  json::json_pointer const pointer(path);
  return document.contains(pointer) ? &document.at(pointer) : nullptr;
}

json const& array_at(json const& document, char const* path) {
  json const* const value = find(document, path);
  return value != nullptr && value->is_array() ? *value : kNoArray;
}

json const& object_at(json const& document, char const* path) {
  json const* const value = find(document, path);
  return value != nullptr && value->is_object() ? *value : kNoObject;
}

uint64_t as_number(json const& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer()) return 0;  // negative
  if (!value.is_number_float()) return 0;
  double const number = value.get<double>();
  return number >= 0 && number < 1.8e19 ? static_cast<uint64_t>(number) : 0;
}

/// Replaces control characters, which could make a terminal do things.
std::string harmless(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string cut(std::string text, size_t width) {
  if (text.size() > width) {
    text.resize(width);
    text.back() = '~';
  }
  return text;
}

std::string with_thousands(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

/// Returns `items` after `title`, on as many lines as they need.
std::string list(std::string_view title, std::vector<std::string> const& items) {
  std::string out;
  std::string line = fmt::format("  {:<12}", title);
  bool fresh = true;
  for (std::string const& item : items) {
    if (!fresh && line.size() + 2 + item.size() > kWidth) {
      out += line + ",\n";
      line = std::string(14, ' ');
      fresh = true;
    }
    line.append(fresh ? "" : ", ").append(item);
    fresh = false;
  }
  return fresh ? out : out + line + "\n";
}

std::string process_line(json const& d) {
  return fmt::format(
      "{:>7}  {:<20}  {:>5}  {:>5}  {:>11}  {:>8} {:>8}  {:>8} {:>8}\n", number_at(d, "/pid"),
      cut(text_at(d, "/program"), kProgramWidth), number_at(d, "/nid"),
      array_at(d, "/connections").size(),
      fmt::format("{}/{}", number_at(d, "/streams/engine"), number_at(d, "/streams/total")),
      human_bytes(number_at(d, "/bytes/tx/engine")), human_bytes(number_at(d, "/bytes/tx/kernel")),
      human_bytes(number_at(d, "/bytes/rx/engine")), human_bytes(number_at(d, "/bytes/rx/kernel")));
}

std::string connection_lines(json const& d) {
  std::vector<std::string> items;
  for (json const& c : array_at(d, "/connections")) {
    uint64_t const streams = number_at(c, "/streams");
    std::string const host = text_at(c, "/host");
    std::string const where =
        host.empty() ? fmt::format("PID {}", number_at(c, "/pid")) : fmt::format("on {}", host);
    items.push_back(fmt::format("NID {} ({}, {}, {} stream{})", number_at(c, "/nid"), where,
                                text_at(c, "/device"), streams, streams == 1 ? "" : "s"));
  }
  return list("connections", items);
}

std::string direction(json const& stream, std::string_view which) {
  auto const path = [&](char const* field) { return fmt::format("/{}/{}", which, field); };
  return fmt::format("{:<6} {:>7} {:>7}", cut(text_at(stream, path("carrier").c_str()), 6),
                     human_bytes(number_at(stream, path("engine").c_str())),
                     human_bytes(number_at(stream, path("kernel").c_str())));
}

std::string stream_lines(json const& d) {
  json const& streams = array_at(d, "/open_streams");
  if (streams.empty()) return {};
  std::string out =
      fmt::format("  {:<21}  {:<21}  {:<6} {:>7} {:>7}   {:<6} {:>7} {:>7}\n", "LOCAL", "REMOTE",
                  "TX BY", "ENGINE", "KERNEL", "RX BY", "ENGINE", "KERNEL");
  for (json const& s : streams) {
    std::string const local = text_at(s, "/local");
    std::string const remote = text_at(s, "/remote");
    if (std::max(local.size(), remote.size()) <= kLongestAddress) {
      out += fmt::format("  {:<21}  {:<21}  ", local, remote);
    } else {
      out += fmt::format("  {}  {}\n{:<48}", local, remote, "");
    }
    out += direction(s, "tx") + "   " + direction(s, "rx") + "\n";
    std::vector<std::string> states;
    std::string const state = text_at(s, "/state");
    if (state != "engine" && state != "kernel" && !state.empty()) states.push_back(state);
    for (auto const& [which, verb] : {std::pair{"tx", "sending"}, std::pair{"rx", "receiving"}}) {
      // Most directions are where their bytes are, and the columns say so.
      std::string const at = text_at(s, fmt::format("/{}/state", which).c_str());
      if (!at.empty() && at != text_at(s, fmt::format("/{}/carrier", which).c_str()))
        states.push_back(fmt::format("{} {}", verb, at));
    }
    if (!states.empty()) out += fmt::format("      state: {}\n", fmt::join(states, ", "));
    std::string const reason = text_at(s, "/reason");
    if (!reason.empty()) out += fmt::format("      on the kernel: {}\n", reason);
  }
  return out;
}

std::string engine_lines(json const& d) {
  json const& engine = object_at(d, "/engine");
  std::vector<std::string> items;
  for (auto const& [name, value] : engine.items()) {
    if (!value.is_number()) continue;
    std::string label = harmless(name);
    std::replace(label.begin(), label.end(), '_', ' ');
    items.push_back(label + " " + with_thousands(as_number(value)));
  }
  uint64_t const requests = number_at(engine, "/work_requests");
  if (requests != 0) {
    double const fragments = static_cast<double>(number_at(engine, "/fragments"));
    items.push_back(fmt::format("fragments per work request {:.2f}",
                                fragments / static_cast<double>(requests)));
  }
  return list("engine", items);
}

std::string reason_lines(json const& d) {
  std::vector<std::string> items;
  for (auto const& [reason, count] : object_at(d, "/kernel_reasons").items()) {
    items.push_back(fmt::format("{} ({})", harmless(reason), with_thousands(as_number(count))));
  }
  return list("on kernel", items);
}

std::string switch_lines(json const& d) {
  return list("switches", {"up " + with_thousands(number_at(d, "/switches/up")),
                           "down " + with_thousands(number_at(d, "/switches/down"))});
}

}  // namespace

uint64_t number_at(json const& document, char const* path) {
  json const* const value = find(document, path);
  return value != nullptr ? as_number(*value) : 0;
}

std::string text_at(json const& document, char const* path) {
  json const* const value = find(document, path);
  return value != nullptr && value->is_string() ? harmless(value->get<std::string>()) : "";
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes);
  constexpr std::array<char, 6> kUnits = {'K', 'M', 'G', 'T', 'P', 'E'};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1023.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  int const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, digits, kUnits[unit]);
}

std::string render(std::vector<json> const& documents) {
  std::string out;
  for (json const& d : documents) {
    if (!out.empty()) out += '\n';
    out +=
        fmt::format("{:>7}  {:<20}  {:>5}  {:>5}  {:>11}  {:>8} {:>8}  {:>8} {:>8}\n", "PID",
                    "PROGRAM", "NID", "CONNS", "STREAMS", "TX ENG", "TX KRN", "RX ENG", "RX KRN");
    out += process_line(d) + connection_lines(d) + switch_lines(d) + reason_lines(d) +
           engine_lines(d) + stream_lines(d);
  }
  return out;
}

}  // namespace sidestep::tool

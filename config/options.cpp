#include "config/options.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "config/nodes.hpp"
#include "config/rules.hpp"
#include "config/text.hpp"
#include "config/trust.hpp"

namespace sidestep::config {
namespace {

constexpr std::string_view kPrefix = "SIDESTEP_";
constexpr std::array<std::string_view, 4> kLevelNames = {"error", "warn", "info", "debug"};

constexpr Option kOptions[] = {
#define OPTION(kind, member, NAME, default_value, min, max, unit, text) \
  {"SIDESTEP_" #NAME, #member, Kind::kind, min, max, unit, text},
#include "config/options.def"
};

size_t index_of(Option const& option) noexcept {
  return static_cast<size_t>(&option - &kOptions[0]);
}

// Parsing, with one overload for each type of member. On false, `out` is unchanged.

bool parse(Option const&, std::string_view value, bool& out, std::string&) {
  for (std::string_view const word : {"yes", "on", "true", "1", "no", "off", "false", "0"}) {
    if (!text::same_word(value, word)) continue;
    out = word == "yes" || word == "on" || word == "true" || word == "1";
    return true;
  }
  return false;
}

bool parse(Option const&, std::string_view value, LogLevel& out, std::string&) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (!text::same_word(value, kLevelNames[i])) continue;
    out = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

bool parse(Option const& option, std::string_view value, uint32_t& out, std::string&) {
  auto const number = text::parse_number(value);
  if (!number || *number < option.min || *number > option.max) return false;
  out = static_cast<uint32_t>(*number);
  return true;
}

bool parse(Option const& option, std::string_view value, uint64_t& out, std::string&) {
  uint64_t factor = 1;
  if (!value.empty()) {
    switch (value.back()) {
      case 'k':
      case 'K':
        factor = kKiB;
        break;
      case 'm':
      case 'M':
        factor = kMiB;
        break;
      case 'g':
      case 'G':
        factor = kGiB;
        break;
      default:
        break;
    }
    if (factor != 1) value.remove_suffix(1);
  }
  auto const number = text::parse_number(value);
  if (!number || *number > option.max / factor) return false;
  uint64_t const bytes = *number * factor;
  if (bytes < option.min) return false;
  if (option.kind == Kind::power && !std::has_single_bit(bytes)) return false;
  out = bytes;
  return true;
}

/// True if expand() replaces every % in `pattern`.
bool valid_pattern(std::string_view pattern) noexcept {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') continue;
    if (++i == pattern.size() || (pattern[i] != 'p' && pattern[i] != '%')) return false;
  }
  return true;
}

bool valid_device(std::string_view value) noexcept {
  for (std::string_view const word : {"auto", "shm", "verbs", "none"}) {
    if (value == word) return true;
  }
  constexpr std::string_view kVerbs = "verbs:";
  if (!value.starts_with(kVerbs) || value.size() == kVerbs.size()) return false;
  value.remove_prefix(kVerbs.size());
  return std::all_of(value.begin(), value.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.';
  });
}

bool valid_text(Option const& option, std::string_view value, std::string& why) {
  switch (option.kind) {
    case Kind::path:
      return valid_pattern(value);
    case Kind::device:
      return valid_device(value);
    case Kind::nodes:
      return valid_nodes(value);
    case Kind::folder:
      return value.empty() || value.starts_with('/');
    case Kind::trust:
      return valid_trust(value);
    case Kind::rules:
      return Rules::parse(value, why).has_value();
    default:
      return true;
  }
}

bool parse(Option const& option, std::string_view value, std::string& out, std::string& why) {
  if (value.size() < option.min || value.size() > option.max ||
      value.find('\0') != std::string_view::npos) {
    why = text::joined({"at most ", std::to_string(option.max), " characters"});
    return false;
  }
  if (!valid_text(option, value, why)) return false;
  out = value;
  return true;
}

using Setter = bool (*)(Config&, Option const&, std::string_view, std::string&);

constexpr Setter kSetters[] = {
#define OPTION(kind, member, NAME, default_value, min, max, unit, text)                \
  [](Config& config, Option const& option, std::string_view value, std::string& why) { \
    return parse(option, value, config.member, why);                                   \
  },
#include "config/options.def"
};

// Writing a value in the form in which a user would set it.

std::string size_text(uint64_t bytes) {
  if (bytes != 0 && bytes % kGiB == 0) return std::to_string(bytes / kGiB) + "G";
  if (bytes != 0 && bytes % kMiB == 0) return std::to_string(bytes / kMiB) + "M";
  if (bytes != 0 && bytes % kKiB == 0) return std::to_string(bytes / kKiB) + "K";
  return std::to_string(bytes);
}

std::string written(bool value) {
  return value ? "yes" : "no";
}
std::string written(LogLevel value) {
  return std::string(name_of(value));
}
std::string written(uint32_t value) {
  return std::to_string(value);
}
std::string written(uint64_t value) {
  return size_text(value);
}
std::string written(std::string const& value) {
  return value;
}

using Writer = std::string (*)(Config const&);

constexpr Writer kWriters[] = {
#define OPTION(kind, member, NAME, default_value, min, max, unit, text) \
  [](Config const& config) { return written(config.member); },
#include "config/options.def"
};

}  // namespace

std::span<Option const> options() noexcept {
  return kOptions;
}

Option const* find_option(std::string_view name) noexcept {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (Option const& option : kOptions) {
    if (option.name.substr(kPrefix.size()) == name) return &option;
  }
  return nullptr;
}

Option const* nearest_option(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  constexpr size_t kLongestName = 64;  // bounds the work on text that is no name at all
  if (name.empty() || name.size() > kLongestName) return nullptr;
  Option const* nearest = nullptr;
  // Two slips in a short word make it another word.
  size_t limit = name.size() < 5 ? 1 : 2;
  for (Option const& option : kOptions) {
    std::string_view const known = option.name.substr(kPrefix.size());
    // An unfinished name (SPIN for SPIN_US) is near as well.
    size_t const distance =
        known.starts_with(name) && name.size() >= 3 ? 1 : text::edit_distance(name, known);
    if (distance > limit || (nearest != nullptr && distance == limit)) continue;
    nearest = &option;
    limit = distance;
  }
  return nearest;
}

bool set_option(Config& config, Option const& option, std::string_view value, std::string& why) {
  return kSetters[index_of(option)](config, option, value, why);
}

std::string allowed_values(Option const& option) {
  switch (option.kind) {
    case Kind::yes_no:
      return "yes or no";
    case Kind::level:
      return "error, warn, info or debug";
    case Kind::number:
      return text::joined({"a number", option.unit.empty() ? "" : " of ", option.unit, " from ",
                           std::to_string(option.min), " to ", std::to_string(option.max)});
    case Kind::size:
      return text::joined({"a size from ", size_text(option.min), " to ", size_text(option.max)});
    case Kind::power:
      return text::joined(
          {"a power of two from ", size_text(option.min), " to ", size_text(option.max)});
    case Kind::path:
      return "a path, where %p is the process id and %% a percent sign";
    case Kind::file:
      return "a path";
    case Kind::device:
      return "auto, shm, verbs, verbs:NAME or none";
    case Kind::nodes:
      return "hosts separated by commas, or @FILE with one host per line";
    case Kind::folder:
      return text::joined(
          {"an absolute path of at most ", std::to_string(option.max), " characters"});
    case Kind::trust:
      return "users and @groups separated by commas, each a name or a number";
    case Kind::rules:
      return "rules separated by ';', each: allow|deny [program=GLOB] [addr=CIDR|*] [port=N[-M]]";
  }
  return {};
}

std::string default_value(Option const& option) {
  return kWriters[index_of(option)](Config{});
}

std::string refusal(Option const& option, std::string_view value, std::string_view why) {
  std::string const more = why.empty() ? "" : text::joined({" (", why, ")"});
  return text::joined({"'", text::printable(value), "' is not valid", more, ": it must be ",
                       allowed_values(option)});
}

std::string_view name_of(LogLevel level) noexcept {
  size_t const i = static_cast<size_t>(level);
  return i < kLevelNames.size() ? kLevelNames[i] : "error";
}

}  // namespace sidestep::config

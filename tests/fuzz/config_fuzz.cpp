#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "config/config.hpp"
#include "config/nodes.hpp"
#include "config/options.hpp"
#include "config/rules.hpp"
#include "config/trust.hpp"

// Feeds one text to everything in config/ that reads text from outside: as a configuration file, as
// the value of each variable, as rules, as a list of nodes, and as a list of users with their
// tables. Apart from not crashing, the code must keep what the headers promise: complaints are
// printable lines, and accepted values are within their bounds.

namespace config = sidestep::config;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(config::Loaded const& loaded) {
  for (std::string const& line : loaded.complaints) {
    for (char const c : line) require(static_cast<unsigned char>(c) >= 0x20);
  }
  config::Config const& c = loaded.config;
  require(c.nid <= 65535 && c.discovery_port >= 1 && c.discovery_port <= 65535);
  require((c.orb_size & (c.orb_size - 1)) == 0 && c.orb_size >= 64 * config::kKiB);
  require(c.window_size >= 16 * config::kKiB && c.window_size <= config::kGiB);
  std::string error;
  require(config::Rules::parse(c.rules, error).has_value());
  require(config::valid_nodes(c.nodes));
  require(config::valid_trust(c.trust));
}

void ask(config::Rules const& rules, std::string_view text) {
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  if (text.size() >= sizeof six.sin6_addr) {
    std::memcpy(&six.sin6_addr, text.data(), sizeof six.sin6_addr);
    std::memcpy(&four.sin_addr, text.data(), sizeof four.sin_addr);
  }
  auto const& a = reinterpret_cast<sockaddr const&>(six);
  auto const& b = reinterpret_cast<sockaddr const&>(four);
  // All rules treat both ends alike.
  require(rules.allows(text, text, a, b) == rules.allows(text, text, b, a));
}

void check_trust(std::string_view list, std::string_view tables) {
  if (!config::valid_trust(list)) return;
  std::vector<std::string> unknown;
  auto const trust = config::Trust::of(list, tables, tables, unknown);
  // Unknown names are reported, and nobody is trusted because of them.
  if (!list.empty()) require(!trust.trusts_nobody() || !unknown.empty());
  if (list.empty()) require(trust.trusts_nobody() && unknown.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(uint8_t const* data, size_t size) {
  std::string_view const text(reinterpret_cast<char const*>(data), size);
  check(config::load_text(text, "fuzz.conf", nullptr));

  for (config::Option const& option : config::options()) {
    std::string const variable = std::string(option.name) + "=" + std::string(text);
    char const* const block[] = {variable.c_str(), nullptr};
    check(config::load_text("", "fuzz.conf", block));
  }

  std::string error;
  if (auto const rules = config::Rules::parse(text, error)) ask(*rules, text);
  if (!text.starts_with('@')) config::node_hosts(text);
  config::expand(std::string(text), 1);
  std::string_view const line = text.substr(0, text.find('\n'));
  check_trust(line, text.substr(line.size()));
  return 0;
}

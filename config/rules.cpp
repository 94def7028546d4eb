#include "config/rules.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <exception>

#include "config/text.hpp"

namespace sidestep::config {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr unsigned kMappedBits = 96;

bool is_mapped(std::array<uint8_t, 16> const& address) noexcept {
  return std::memcmp(address.data(), kMappedPrefix.data(), kMappedPrefix.size()) == 0;
}

std::array<uint8_t, 16> map_v4(in_addr const& v4) noexcept {
  std::array<uint8_t, 16> out{};
  std::memcpy(out.data(), kMappedPrefix.data(), kMappedPrefix.size());
  std::memcpy(out.data() + kMappedPrefix.size(), &v4, sizeof v4);
  return out;
}

bool same_bits(std::array<uint8_t, 16> const& a, std::array<uint8_t, 16> const& b,
               unsigned bits) noexcept {
  size_t const whole = bits / 8;
  if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
  unsigned const rest = bits % 8;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

/// True if `name` matches `pattern`. Iterates, and takes at most |pattern| * |name| steps for any
/// pattern: on a mismatch only the last `*` has to take one more character.
bool glob_matches(std::string_view pattern, std::string_view name) noexcept {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Takes the next word off `rest`; empty at its end.
std::string_view next_word(std::string_view& rest) noexcept {
  rest = text::trim(rest);
  size_t const end = rest.find_first_of(" \t\r\n\v\f");
  std::string_view const word = rest.substr(0, end);
  rest.remove_prefix(word.size());
  return word;
}

}  // namespace

std::optional<Rules> Rules::parse(std::string_view source, std::string& error) noexcept try {
  Rules out;
  std::string what;
  for (size_t number = 1; !source.empty(); ++number) {
    std::string_view const part = text::trim(text::split_off(source, ';'));
    if (part.empty()) continue;
    auto rule = parse_rule(part, what);
    if (!rule) {
      error = text::joined({"rule ", std::to_string(number), ": ", what});
      return std::nullopt;
    }
    out.rules_.push_back(std::move(*rule));
  }
  return out;
} catch (std::exception const&) {
  error.clear();
  return std::nullopt;
}

std::optional<Rules::Rule> Rules::parse_rule(std::string_view source, std::string& error) {
  Rule rule;
  std::string_view const verb = next_word(source);
  if (verb != "allow" && verb != "deny") {
    error = text::joined({"it must start with allow or deny, not '", text::printable(verb), "'"});
    return std::nullopt;
  }
  rule.allow = verb == "allow";
  std::vector<std::string_view> seen;
  for (std::string_view word = next_word(source); !word.empty(); word = next_word(source)) {
    std::string_view value = word;
    std::string_view const name = text::split_off(value, '=');
    for (std::string_view const other : seen) {
      if (other != name) continue;
      error = text::joined({text::printable(name), " is given twice"});
      return std::nullopt;
    }
    seen.push_back(name);
    if (!parse_condition(name, value, rule)) {
      error = text::joined({"bad condition '", text::printable(word), "'"});
      return std::nullopt;
    }
  }
  return rule;
}

bool Rules::parse_condition(std::string_view name, std::string_view value, Rule& rule) {
  if (value.empty()) return false;
  if (name == "program") {
    rule.program = value;
    return true;
  }
  if (name != "addr" && name != "port") return false;
  rule.any_end = false;
  return name == "addr" ? parse_address(value, rule) : parse_port(value, rule);
}

bool Rules::parse_address(std::string_view value, Rule& rule) {
  if (value == "*") return true;
  bool const has_prefix = value.find('/') != std::string_view::npos;
  std::string const host(text::split_off(value, '/'));
  // inet_pton stops at a NUL, which must not count as the end of the word.
  if (host.find('\0') != std::string::npos) return false;
  rule.any_address = false;
  in_addr v4{};
  unsigned bits = 128;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    rule.address = map_v4(v4);
    rule.v4 = true;
    bits = 32;
  } else if (inet_pton(AF_INET6, host.c_str(), rule.address.data()) != 1) {
    return false;
  }
  rule.prefix = 128;
  if (has_prefix) {
    auto const prefix = text::parse_number(value);
    if (!prefix || *prefix > bits) return false;
    rule.prefix = static_cast<unsigned>(*prefix) + (128 - bits);
  }
  // A rule written as IPv6 but inside the mapped range is an IPv4 rule.
  if (rule.prefix >= kMappedBits && is_mapped(rule.address)) rule.v4 = true;
  return true;
}

bool Rules::parse_port(std::string_view value, Rule& rule) {
  bool const is_range = value.find('-') != std::string_view::npos;
  auto const first = text::parse_number(text::split_off(value, '-'));
  auto const last = is_range ? text::parse_number(value) : first;
  if (!first || !last || *first > *last || *last > 65535) return false;
  rule.first_port = static_cast<uint16_t>(*first);
  rule.last_port = static_cast<uint16_t>(*last);
  return true;
}

Rules::End Rules::end_of(sockaddr const& address) noexcept {
  End end;
  // The address is copied because the caller's storage may be aligned only for a sockaddr.
  auto const* bytes = reinterpret_cast<char const*>(&address);
  if (address.sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, bytes, sizeof in);
    end = {true, true, ntohs(in.sin_port), map_v4(in.sin_addr)};
  } else if (address.sa_family == AF_INET6) {
    sockaddr_in6 in6;
    std::memcpy(&in6, bytes, sizeof in6);
    end.known = true;
    end.port = ntohs(in6.sin6_port);
    std::memcpy(end.address.data(), &in6.sin6_addr, sizeof in6.sin6_addr);
    end.v4 = is_mapped(end.address);
  }
  return end;
}

bool Rules::end_matches(Rule const& rule, End const& end) noexcept {
  if (!end.known || end.port < rule.first_port || end.port > rule.last_port) return false;
  return rule.any_address ||
         (rule.v4 == end.v4 && same_bits(rule.address, end.address, rule.prefix));
}

bool Rules::program_matches(Rule const& rule, std::string_view program,
                            std::string_view path) noexcept {
  if (!rule.program) return true;
  if (rule.program->find('/') != std::string::npos) return glob_matches(*rule.program, path);
  program.remove_prefix(program.rfind('/') + 1);  // npos + 1 is 0: nothing to remove
  return glob_matches(*rule.program, program);
}

bool Rules::allows(std::string_view program, std::string_view path, sockaddr const& local,
                   sockaddr const& remote) const noexcept {
  if (rules_.empty()) return true;
  End const near = end_of(local);
  End const far = end_of(remote);
  for (Rule const& rule : rules_) {
    if (!program_matches(rule, program, path)) continue;
    if (rule.any_end || end_matches(rule, near) || end_matches(rule, far)) return rule.allow;
  }
  return true;
}

}  // namespace sidestep::config

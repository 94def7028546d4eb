#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The rules of SIDESTEP_RULES: which streams may leave the kernel.
///
///     rules     = rule { ";" rule }            empty rules are skipped
///     rule      = ("allow" | "deny") { condition }    separated by blanks
///     condition = "program=" GLOB | "addr=" CIDR | "addr=*" | "port=" N [ "-" M ]
///
/// The first rule whose conditions all hold decides. If there is none, the stream is allowed. A
/// rule without conditions always holds. Each condition may appear once in a rule.
///
/// - program: `*` and `?` in GLOB mean the same as in file names. A GLOB without a slash is
///   compared with the last component of the program's name, a GLOB with one with the path of its
///   executable.
/// - addr and port match either end of the stream, local or remote, so that the same rules give the
///   same result on both sides. If a rule has both, they must hold for the same end.
/// - addr: an IPv4 or IPv6 address, alone or with /PREFIX; bits behind the prefix are ignored. `*`
///   is any address, 0.0.0.0/0 any IPv4 address. A v4-mapped IPv6 address counts as IPv4, both in
///   the rule and in the stream.
namespace sidestep::config {

class Rules {
 public:
  /// No rules: everything is allowed.
  Rules() noexcept = default;

  /// Returns the rules in `source`. If one is malformed, returns nothing and puts the number of the
  /// rule and what is wrong with it into `error`.
  static std::optional<Rules> parse(std::string_view source, std::string& error) noexcept;

  /// True if a stream of `program`, whose executable is `path`, with these ends may leave the
  /// kernel. The addresses are read as far as their family says (sockaddr_in, sockaddr_in6); no
  /// address condition holds for an end of another family. Allocates nothing; any number of threads
  /// may call this at once.
  bool allows(std::string_view program, std::string_view path, sockaddr const& local,
              sockaddr const& remote) const noexcept;

 private:
  /// An address as 16 bytes, with IPv4 as v4-mapped, and the port in host byte order.
  struct End {
    bool known = false;
    bool v4 = false;
    uint16_t port = 0;
    std::array<uint8_t, 16> address{};
  };

  struct Rule {
    bool allow = true;
    std::optional<std::string> program;
    bool any_address = true;
    bool v4 = false;
    unsigned prefix = 0;  ///< in bits of `address`: for IPv4, 96 more than what was written
    std::array<uint8_t, 16> address{};
    uint16_t first_port = 0;
    uint16_t last_port = 65535;
    bool any_end = true;  ///< the rule has neither addr nor port
  };

  static End end_of(sockaddr const& address) noexcept;
  static std::optional<Rule> parse_rule(std::string_view source, std::string& error);
  static bool parse_condition(std::string_view name, std::string_view value, Rule& rule);
  static bool parse_address(std::string_view value, Rule& rule);
  static bool parse_port(std::string_view value, Rule& rule);
  static bool end_matches(Rule const& rule, End const& end) noexcept;
  static bool program_matches(Rule const& rule, std::string_view program,
                              std::string_view path) noexcept;

  std::vector<Rule> rules_;
};

}  // namespace sidestep::config

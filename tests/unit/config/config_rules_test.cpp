#include "config/rules.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/unit/config/config_fixtures.hpp"

using sidestep::config::Rules;
using sidestep::tests::mentions;

namespace {

struct Address {
  Address(char const* text, uint16_t port) {
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
      v4.sin_family = AF_INET;
      v4.sin_port = htons(port);
    } else {
      BOOST_REQUIRE_EQUAL(inet_pton(AF_INET6, text, &v6.sin6_addr), 1);
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(port);
    }
  }
  sockaddr const& get() const {
    auto const* v4_any = reinterpret_cast<sockaddr const*>(&v4);
    return v4.sin_family == AF_INET ? *v4_any : *reinterpret_cast<sockaddr const*>(&v6);
  }
  sockaddr_in v4{};
  sockaddr_in6 v6{};
};

/// True if `rules` allow a stream of `program` between the two ends.
bool allowed(char const* rules, Address const& local, Address const& remote,
             std::string_view program = "java") {
  std::string error;
  auto const parsed = Rules::parse(rules, error);
  BOOST_REQUIRE_MESSAGE(parsed.has_value(), rules << ": " << error);
  return parsed->allows(program, program, local.get(), remote.get());
}

std::string error_of(std::string_view rules) {
  std::string error;
  BOOST_CHECK_MESSAGE(!Rules::parse(rules, error), rules << " should be refused");
  return error;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(config_rules)

BOOST_AUTO_TEST_CASE(everything_is_allowed_without_rules) {
  for (char const* rules : {"", " ", ";", " ; ;"}) {
    BOOST_CHECK(allowed(rules, {"10.0.0.1", 1}, {"10.0.0.2", 2}));
  }
  BOOST_CHECK(Rules().allows("x", "/x", Address("1.1.1.1", 1).get(), Address("1.1.1.1", 1).get()));
}

BOOST_AUTO_TEST_CASE(the_first_rule_that_matches_decides) {
  Address const a("10.0.0.1", 1000);
  Address const b("10.0.0.2", 2000);
  BOOST_CHECK(!allowed("deny", a, b));
  BOOST_CHECK(allowed("allow;deny", a, b));
  BOOST_CHECK(!allowed("deny;allow", a, b));
  BOOST_CHECK(allowed("allow port=2000;deny", a, b));
  BOOST_CHECK(!allowed("allow port=2001;deny", a, b));
}

BOOST_AUTO_TEST_CASE(ports_match_at_either_end) {
  Address const a("10.0.0.1", 1000);
  Address const b("10.0.0.2", 2000);
  BOOST_CHECK(!allowed("deny port=1000", a, b));
  BOOST_CHECK(!allowed("deny port=1000", b, a));
  BOOST_CHECK(!allowed("deny port=1999-2000", a, b));
  BOOST_CHECK(allowed("deny port=1001-1999", a, b));
  BOOST_CHECK(!allowed("deny port=0-65535", a, b));
}

BOOST_AUTO_TEST_CASE(address_and_port_must_match_the_same_end) {
  Address const a("10.0.0.1", 1000);
  Address const b("10.0.0.2", 2000);
  BOOST_CHECK(!allowed("deny addr=10.0.0.2 port=2000", a, b));
  BOOST_CHECK(allowed("deny addr=10.0.0.1 port=2000", a, b));
}

BOOST_AUTO_TEST_CASE(prefixes_match_bit_by_bit) {
  Address const a("192.168.1.129", 1);
  Address const b("10.0.0.1", 2);
  BOOST_CHECK(!allowed("deny addr=192.168.1.128/25", a, b));
  BOOST_CHECK(allowed("deny addr=192.168.1.0/25", a, b));
  BOOST_CHECK(!allowed("deny addr=192.168.1.128/31", a, b));
  BOOST_CHECK(allowed("deny addr=192.168.1.128/32", a, b));
  BOOST_CHECK(!allowed("deny addr=192.168.77.77/16", a, b));
  BOOST_CHECK(!allowed("deny addr=0.0.0.0/0", a, b));
  BOOST_CHECK(!allowed("deny addr=*", a, b));
}

BOOST_AUTO_TEST_CASE(families_do_not_match_each_other) {
  Address const a("fd00::1", 1);
  Address const b("fd00:0:1::1", 2);
  BOOST_CHECK(allowed("deny addr=0.0.0.0/0", a, b));
  BOOST_CHECK(!allowed("deny addr=::/0", a, b));
  BOOST_CHECK(!allowed("deny addr=*", a, b));
  BOOST_CHECK(!allowed("deny addr=fd00::/48", a, b));
  BOOST_CHECK(allowed("deny addr=fd01::/16", a, b));
  BOOST_CHECK(allowed("deny addr=::/0", {"10.0.0.1", 1}, {"10.0.0.2", 2}));
}

BOOST_AUTO_TEST_CASE(a_mapped_address_is_one_of_ipv4) {
  Address const a("::ffff:10.0.0.1", 1);
  Address const b("::ffff:10.0.0.2", 2);
  BOOST_CHECK(!allowed("deny addr=10.0.0.0/24", a, b));
  BOOST_CHECK(allowed("deny addr=10.0.1.0/24", a, b));
  BOOST_CHECK(allowed("deny addr=::/0", a, b));
  BOOST_CHECK(!allowed("deny addr=::ffff:10.0.0.0/120", {"10.0.0.9", 1}, {"10.1.0.2", 2}));
}

BOOST_AUTO_TEST_CASE(programs_match_as_globs) {
  Address const a("10.0.0.1", 1);
  Address const b("10.0.0.2", 2);
  auto const denied = [&](char const* rules, std::string_view program) {
    return !allowed(rules, a, b, program);
  };
  BOOST_CHECK(denied("deny program=java", "java"));
  BOOST_CHECK(!denied("deny program=java", "javac"));
  BOOST_CHECK(denied("deny program=java*", "javac"));
  BOOST_CHECK(denied("deny program=j?va", "java"));
  BOOST_CHECK(!denied("deny program=j?va", "jva"));
  BOOST_CHECK(denied("deny program=*a*c", "javac"));
  BOOST_CHECK(!denied("deny program=*a*b", "javac"));
  BOOST_CHECK(denied("deny program=*", ""));
  BOOST_CHECK(!denied("deny program=?", ""));
  BOOST_CHECK(denied("deny program=java", "/usr/bin/java"));
  BOOST_CHECK(denied("deny program=/usr/*", "/usr/bin/java"));
  BOOST_CHECK(!denied("deny program=/opt/*", "/usr/bin/java"));
}

BOOST_AUTO_TEST_CASE(a_glob_with_a_slash_is_for_the_executable) {
  Address const a("10.0.0.1", 1);
  Address const b("10.0.0.2", 2);
  auto const denied = [&](char const* rules, char const* program, char const* path) {
    std::string error;
    return !Rules::parse(rules, error).value().allows(program, path, a.get(), b.get());
  };
  BOOST_CHECK(denied("deny program=/usr/lib/*/java", "java", "/usr/lib/jvm/java"));
  BOOST_CHECK(!denied("deny program=/opt/*", "java", "/usr/lib/jvm/java"));
  BOOST_CHECK(denied("deny program=wget", "wget", "/bin/busybox"));
  BOOST_CHECK(!denied("deny program=busybox", "wget", "/bin/busybox"));
  BOOST_CHECK(!denied("deny program=/*", "wget", ""));
}

BOOST_AUTO_TEST_CASE(all_conditions_must_hold) {
  Address const a("10.0.0.1", 1000);
  Address const b("10.0.0.2", 2000);
  char const* rules = "deny program=java\taddr=10.0.0.0/8  port=2000 ; allow";
  BOOST_CHECK(!allowed(rules, a, b));
  BOOST_CHECK(allowed(rules, a, b, "ssh"));
  BOOST_CHECK(allowed(rules, a, {"10.0.0.2", 2001}));
}

BOOST_AUTO_TEST_CASE(an_end_of_another_family_matches_no_address) {
  sockaddr unknown{};
  unknown.sa_family = AF_UNIX;
  std::string error;
  BOOST_CHECK(Rules::parse("deny addr=*", error)->allows("x", "/x", unknown, unknown));
  BOOST_CHECK(!Rules::parse("deny", error)->allows("x", "/x", unknown, unknown));
}

BOOST_AUTO_TEST_CASE(a_glob_of_many_stars_is_not_slow) {
  std::string const program(4000, 'a');
  std::string rules = "deny program=";
  for (int i = 0; i < 200; ++i) rules += "*a";
  rules += "b";
  BOOST_CHECK(allowed(rules.c_str(), {"10.0.0.1", 1}, {"10.0.0.2", 2}, program));
}

BOOST_AUTO_TEST_CASE(bad_rules_name_the_rule_and_the_word) {
  for (std::string_view const bad : {"forbid",
                                     "ALLOW",
                                     "deny port",
                                     "deny port=",
                                     "deny port=65536",
                                     "deny port=2-1",
                                     "deny port=1-",
                                     "deny port=-1",
                                     "deny port=a",
                                     "deny addr=",
                                     "deny addr=host",
                                     "deny addr=10.0.0.1/33",
                                     "deny addr=::1/129",
                                     "deny addr=10.0.0.1/",
                                     "deny addr=1.2.3",
                                     "deny program=",
                                     "deny user=root",
                                     "deny port=1 port=2",
                                     "deny, allow",
                                     "=",
                                     "deny ="}) {
    BOOST_CHECK_MESSAGE(mentions(error_of(bad), "rule 1: "), bad);
  }
  BOOST_CHECK_EQUAL(error_of("allow;deny port=x"), "rule 2: bad condition 'port=x'");
  BOOST_CHECK_EQUAL(error_of(std::string_view("deny addr=1.2.3.4\0x", 19)),
                    "rule 1: bad condition 'addr=1.2.3.4?x'");
}

BOOST_AUTO_TEST_SUITE_END()

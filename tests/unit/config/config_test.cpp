#include "config/config.hpp"

#include <boost/test/unit_test.hpp>
#include <set>
#include <string>
#include <string_view>

#include "config/options.hpp"
#include "tests/unit/config/config_fixtures.hpp"

namespace config = sidestep::config;
using config::Config;
using config::Loaded;
using config::LogLevel;
using namespace sidestep::tests;

BOOST_AUTO_TEST_SUITE(config_load)

BOOST_AUTO_TEST_CASE(defaults_without_any_setting) {
  for (Loaded const& loaded : {from_environment({}), config::load_text("", "", nullptr)}) {
    BOOST_CHECK(loaded.complaints.empty());
    Config const& c = loaded.config;
    BOOST_CHECK(c.enable);
    BOOST_CHECK(c.log_level == LogLevel::warn);
    BOOST_CHECK_EQUAL(c.log_file, "");
    BOOST_CHECK_EQUAL(c.nid, 0u);
    BOOST_CHECK_EQUAL(c.nodes, "");
    BOOST_CHECK_EQUAL(c.discovery_port, 4798u);
    BOOST_CHECK_EQUAL(c.device, "auto");
    BOOST_CHECK_EQUAL(c.spin_us, 50u);
    BOOST_CHECK_EQUAL(c.orb_size, 4u << 20);
    BOOST_CHECK_EQUAL(c.window_size, 1u << 20);
    BOOST_CHECK_EQUAL(c.pool_size, 64u << 20);
    BOOST_CHECK_EQUAL(c.rules, "");
    BOOST_CHECK_EQUAL(c.stats_file, "");
    BOOST_CHECK_EQUAL(c.config_file, "");
  }
}

BOOST_AUTO_TEST_CASE(every_default_is_accepted_as_a_value) {
  for (config::Option const& option : config::options()) {
    std::string const value = config::default_value(option);
    if (value.empty()) continue;
    Config c;
    std::string why;
    BOOST_CHECK_MESSAGE(config::set_option(c, option, value, why), option.name << "=" << value);
  }
}

BOOST_AUTO_TEST_CASE(every_option_is_documented_and_named_once) {
  std::set<std::string_view> names;
  for (config::Option const& option : config::options()) {
    BOOST_CHECK(names.insert(option.name).second);
    BOOST_CHECK(option.name.starts_with("SIDESTEP_"));
    BOOST_CHECK(option.text.ends_with("."));
    BOOST_CHECK(!config::allowed_values(option).empty());
    BOOST_CHECK(config::find_option(option.name) == &option);
  }
}

BOOST_AUTO_TEST_CASE(all_values_from_the_environment) {
  Loaded const loaded = from_environment(
      {"PATH=/bin", "SIDESTEP_ENABLE=off", "SIDESTEP_LOG_LEVEL=DEBUG", "SIDESTEP_LOG_FILE=/t/%p",
       "SIDESTEP_NID=7", "SIDESTEP_NODES=a.example,10.0.0.1,fe80::1%eth0",
       "SIDESTEP_DISCOVERY_PORT=1", "SIDESTEP_DEVICE=verbs:mlx5_0", "SIDESTEP_SPIN_US=0",
       "SIDESTEP_ORB_SIZE=128K", "SIDESTEP_WINDOW_SIZE=100000", "SIDESTEP_POOL_SIZE=2g",
       "SIDESTEP_RULES=deny port=22", "SIDESTEP_STATS_FILE=/s/%p.json", "SIDESTEP_CONFIG=/c"});
  BOOST_CHECK(loaded.complaints.empty());
  Config const& c = loaded.config;
  BOOST_CHECK(!c.enable);
  BOOST_CHECK(c.log_level == LogLevel::debug);
  BOOST_CHECK_EQUAL(c.log_file, "/t/%p");
  BOOST_CHECK_EQUAL(c.nid, 7u);
  BOOST_CHECK_EQUAL(c.nodes, "a.example,10.0.0.1,fe80::1%eth0");
  BOOST_CHECK_EQUAL(c.discovery_port, 1u);
  BOOST_CHECK_EQUAL(c.device, "verbs:mlx5_0");
  BOOST_CHECK_EQUAL(c.spin_us, 0u);
  BOOST_CHECK_EQUAL(c.orb_size, 128u << 10);
  BOOST_CHECK_EQUAL(c.window_size, 100000u);
  BOOST_CHECK_EQUAL(c.pool_size, 2ull << 30);
  BOOST_CHECK_EQUAL(c.rules, "deny port=22");
  BOOST_CHECK_EQUAL(c.stats_file, "/s/%p.json");
  BOOST_CHECK_EQUAL(c.config_file, "/c");
}

BOOST_AUTO_TEST_CASE(values_at_their_bounds_are_accepted) {
  for (char const* good : {"SIDESTEP_NID=0",
                           "SIDESTEP_NID=65535",
                           "SIDESTEP_DISCOVERY_PORT=1",
                           "SIDESTEP_DISCOVERY_PORT=65535",
                           "SIDESTEP_SPIN_US=1000000",
                           "SIDESTEP_ORB_SIZE=64K",
                           "SIDESTEP_ORB_SIZE=65536",
                           "SIDESTEP_ORB_SIZE=1G",
                           "SIDESTEP_ORB_SIZE=1024m",
                           "SIDESTEP_WINDOW_SIZE=16K",
                           "SIDESTEP_WINDOW_SIZE=16385",
                           "SIDESTEP_WINDOW_SIZE=1G",
                           "SIDESTEP_POOL_SIZE=1M",
                           "SIDESTEP_POOL_SIZE=64G",
                           "SIDESTEP_ENABLE=1",
                           "SIDESTEP_ENABLE=No",
                           "SIDESTEP_ENABLE=TRUE",
                           "SIDESTEP_LOG_LEVEL=error",
                           "SIDESTEP_DEVICE=shm",
                           "SIDESTEP_DEVICE=none",
                           "SIDESTEP_DEVICE=verbs",
                           "SIDESTEP_NODES=@/no/such/file",
                           "SIDESTEP_LOG_FILE=/a%%b",
                           "SIDESTEP_NID="}) {
    Loaded const loaded = from_environment({good});
    BOOST_CHECK_MESSAGE(loaded.complaints.empty(), good);
  }
}

BOOST_AUTO_TEST_CASE(bad_values_are_one_complaint_each_and_leave_the_default) {
  for (char const* bad : {"SIDESTEP_ENABLE=maybe",
                          "SIDESTEP_ENABLE=2",
                          "SIDESTEP_LOG_LEVEL=loud",
                          "SIDESTEP_NID=-1",
                          "SIDESTEP_NID=65536",
                          "SIDESTEP_NID=1x",
                          "SIDESTEP_NID=0x10",
                          "SIDESTEP_NID= 1",
                          "SIDESTEP_NID=+1",
                          "SIDESTEP_NID=99999999999999999999999",
                          "SIDESTEP_DISCOVERY_PORT=0",
                          "SIDESTEP_SPIN_US=1000001",
                          "SIDESTEP_SPIN_US=50us",
                          "SIDESTEP_ORB_SIZE=65535",
                          "SIDESTEP_ORB_SIZE=32K",
                          "SIDESTEP_ORB_SIZE=3M",
                          "SIDESTEP_ORB_SIZE=2G",
                          "SIDESTEP_ORB_SIZE=K",
                          "SIDESTEP_ORB_SIZE=4MB",
                          "SIDESTEP_ORB_SIZE=18014398509481984K",
                          "SIDESTEP_WINDOW_SIZE=16383",
                          "SIDESTEP_POOL_SIZE=65G",
                          "SIDESTEP_DEVICE=ib",
                          "SIDESTEP_DEVICE=verbs:",
                          "SIDESTEP_DEVICE=verbs:a/b",
                          "SIDESTEP_NODES=a,,b",
                          "SIDESTEP_NODES=@",
                          "SIDESTEP_NODES=a b",
                          "SIDESTEP_NODES=-a",
                          "SIDESTEP_LOG_FILE=/a%d",
                          "SIDESTEP_STATS_FILE=/a%",
                          "SIDESTEP_RULES=forbid"}) {
    std::string const complaint = only_complaint(from_environment({bad}));
    std::string_view const text = bad;
    size_t const equals = text.find('=');
    BOOST_CHECK_MESSAGE(mentions(complaint, text.substr(0, equals)), complaint);
    BOOST_CHECK_MESSAGE(mentions(complaint, text.substr(equals + 1)), complaint);
    BOOST_CHECK_MESSAGE(mentions(complaint, "it must be"), complaint);
    BOOST_CHECK_MESSAGE(mentions(complaint, "the default"), complaint);
  }
  Loaded const loaded = from_environment({"SIDESTEP_ORB_SIZE=3M", "SIDESTEP_RULES=forbid"});
  BOOST_CHECK_EQUAL(loaded.config.orb_size, 4u << 20);
  BOOST_CHECK_EQUAL(loaded.config.rules, "");
  BOOST_CHECK_EQUAL(loaded.complaints.size(), 2u);
}

BOOST_AUTO_TEST_CASE(a_complaint_reads_well) {
  BOOST_CHECK_EQUAL(only_complaint(from_environment({"SIDESTEP_SPIN_US=x"})),
                    "SIDESTEP_SPIN_US: 'x' is not valid: it must be a number of microseconds from "
                    "0 to 1000000; the default, 50, is used");
  BOOST_CHECK_EQUAL(only_complaint(from_file("\nORB_SIZE=3M\n")),
                    "SIDESTEP_ORB_SIZE (test.conf:2): '3M' is not valid: it must be a power of two "
                    "from 64K to 1G; the default, 4M, is used");
}

BOOST_AUTO_TEST_CASE(a_complaint_is_one_printable_line) {
  std::string const value = "SIDESTEP_NID=1\n2\x1b[31m" + std::string(5000, 'x');
  std::string const complaint = only_complaint(from_environment({value.c_str()}));
  BOOST_CHECK(complaint.find_first_of("\n\x1b") == std::string::npos);
  BOOST_CHECK_LT(complaint.size(), 400u);
}

BOOST_AUTO_TEST_CASE(unknown_variables_are_complaints_with_the_nearest_name) {
  BOOST_CHECK(mentions(only_complaint(from_environment({"SIDESTEP_SPINUS=1"})),
                       "did you mean SIDESTEP_SPIN_US?"));
  BOOST_CHECK(mentions(only_complaint(from_environment({"SIDESTEP_WINDOW=1M"})),
                       "did you mean SIDESTEP_WINDOW_SIZE?"));
  BOOST_CHECK(
      mentions(only_complaint(from_environment({"SIDESTEP_nid=1"})), "did you mean SIDESTEP_NID?"));
  std::string const far = only_complaint(from_environment({"SIDESTEP_CLOUD_MODE=1"}));
  BOOST_CHECK(mentions(far, "SIDESTEP_CLOUD_MODE"));
  BOOST_CHECK(!mentions(far, "did you mean"));
}

BOOST_AUTO_TEST_CASE(variables_of_others_are_not_looked_at) {
  BOOST_CHECK(
      from_environment({"SIDESTEPPER=1", "NID=x", "sidestep_nid=x", ""}).complaints.empty());
}

BOOST_AUTO_TEST_CASE(of_a_variable_that_stands_twice_the_first_counts) {
  Loaded const loaded = from_environment({"SIDESTEP_NID=1", "SIDESTEP_NID=2"});
  BOOST_CHECK_EQUAL(loaded.config.nid, 1u);
}

BOOST_AUTO_TEST_CASE(patterns_expand) {
  BOOST_CHECK_EQUAL(config::expand("", 1), "");
  BOOST_CHECK_EQUAL(config::expand("/d/%p.json", 4242), "/d/4242.json");
  BOOST_CHECK_EQUAL(config::expand("%p%p", 1), "11");
  BOOST_CHECK_EQUAL(config::expand("%%p", 1), "%p");
  BOOST_CHECK_EQUAL(config::expand("100%", 1), "100%");
  BOOST_CHECK_EQUAL(config::expand("%d%%%p", 3), "%d%3");
}

BOOST_AUTO_TEST_SUITE_END()

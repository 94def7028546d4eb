#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <string>
#include <string_view>

#include "config/config.hpp"
#include "tests/unit/config/config_fixtures.hpp"

namespace config = sidestep::config;
using config::Loaded;
using namespace sidestep::tests;

BOOST_AUTO_TEST_SUITE(config_file)

BOOST_AUTO_TEST_CASE(lines_with_and_without_the_prefix) {
  Loaded const loaded = from_file(
      "# comment\n\n  NID = 5  \r\nSIDESTEP_DEVICE=shm # why\n"
      "RULES=\"deny port=22; allow # not a comment\"\nLOG_FILE=/a#b\nSTATS_FILE='/s'");
  BOOST_CHECK_EQUAL(loaded.config.nid, 5u);
  BOOST_CHECK_EQUAL(loaded.config.device, "shm");
  BOOST_CHECK_EQUAL(loaded.config.log_file, "/a#b");
  BOOST_CHECK_EQUAL(loaded.config.stats_file, "/s");
  BOOST_CHECK(mentions(only_complaint(loaded), "rule 2: bad condition '#'"));
}

BOOST_AUTO_TEST_CASE(environment_wins_over_the_file_and_a_later_line_over_an_earlier) {
  Loaded const loaded = from_file("NID=5\nSPIN_US=1\nSPIN_US=2\n", {"SIDESTEP_NID=6"});
  BOOST_CHECK_EQUAL(loaded.config.nid, 6u);
  BOOST_CHECK_EQUAL(loaded.config.spin_us, 2u);
}

BOOST_AUTO_TEST_CASE(an_empty_variable_means_the_default_even_over_the_file) {
  Loaded const loaded = from_file("NID=5\n", {"SIDESTEP_NID="});
  BOOST_CHECK_EQUAL(loaded.config.nid, 0u);
  BOOST_CHECK(loaded.complaints.empty());
}

BOOST_AUTO_TEST_CASE(what_is_overruled_is_not_complained_about) {
  BOOST_CHECK(from_file("NID=bad\n", {"SIDESTEP_NID=6"}).complaints.empty());
}

BOOST_AUTO_TEST_CASE(lines_that_make_no_sense_are_complaints_with_their_number) {
  BOOST_CHECK(mentions(only_complaint(from_file("\n\nhello\n")), "test.conf:3"));
  BOOST_CHECK(mentions(only_complaint(from_file("HELLO=1\n")), "HELLO (test.conf:1)"));
  BOOST_CHECK(mentions(only_complaint(from_file("=1\n")), "test.conf:1"));
  BOOST_CHECK(mentions(only_complaint(from_file("CONFIG=/x\n")), "environment only"));
}

BOOST_AUTO_TEST_CASE(a_file_of_garbage_makes_a_bounded_number_of_complaints) {
  std::string garbage;
  for (int i = 0; i < 5000; ++i) garbage += "garbage\n";
  Loaded const loaded = from_file(garbage);
  BOOST_CHECK_LE(loaded.complaints.size(), 21u);
  BOOST_CHECK(mentions(loaded.complaints.back(), "4980 more"));
}

BOOST_AUTO_TEST_CASE(a_named_file_is_read) {
  TemporaryFile const file("NID=9\n");
  std::string const variable = "SIDESTEP_CONFIG=" + file.path;
  errno = 77;
  Loaded const loaded = config::load(block_of({variable.c_str()}).data());
  BOOST_CHECK_EQUAL(errno, 77);
  BOOST_CHECK(loaded.complaints.empty());
  BOOST_CHECK_EQUAL(loaded.config.nid, 9u);
  BOOST_CHECK_EQUAL(loaded.config.config_file, file.path);
}

BOOST_AUTO_TEST_CASE(an_empty_file_is_fine) {
  Loaded const loaded = config::load(block_of({"SIDESTEP_CONFIG=/dev/null"}).data());
  BOOST_CHECK(loaded.complaints.empty());
}

BOOST_AUTO_TEST_CASE(a_named_file_that_cannot_be_read_is_a_complaint) {
  for (char const* bad : {"SIDESTEP_CONFIG=/no/such/file", "SIDESTEP_CONFIG=/tmp",
                          "SIDESTEP_CONFIG=/dev/zero", "SIDESTEP_NID=3"}) {
    Loaded const loaded = config::load(block_of({bad, "SIDESTEP_SPIN_US=3"}).data());
    bool const names_file = std::string_view(bad).starts_with("SIDESTEP_CONFIG");
    BOOST_CHECK_EQUAL(loaded.complaints.size(), names_file ? 1u : 0u);
    BOOST_CHECK_EQUAL(loaded.config.spin_us, 3u);
  }
}

BOOST_AUTO_TEST_CASE(a_pipe_without_a_writer_does_not_block_the_start) {
  std::string const path = "/tmp/sidestep-config-test-pipe-" + std::to_string(getpid());
  BOOST_REQUIRE_EQUAL(mkfifo(path.c_str(), 0600), 0);
  std::string const variable = "SIDESTEP_CONFIG=" + path;
  config::load(block_of({variable.c_str()}).data());
  unlink(path.c_str());
}

BOOST_AUTO_TEST_SUITE_END()

#include "config/nodes.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "tests/unit/config/config_fixtures.hpp"

namespace config = sidestep::config;
using sidestep::tests::TemporaryFile;

BOOST_AUTO_TEST_SUITE(config_nodes)

BOOST_AUTO_TEST_CASE(a_list_of_nodes_names_its_hosts) {
  std::vector<std::string> const hosts = {"a", "10.0.0.1", "::1"};
  BOOST_TEST(config::node_hosts("a, 10.0.0.1,::1") == hosts);
  BOOST_CHECK(config::node_hosts("").empty());
  BOOST_CHECK(config::node_hosts("@/no/such/file").empty());
}

BOOST_AUTO_TEST_CASE(a_file_of_nodes_is_read_again) {
  TemporaryFile const file("a # first\n\n# none\n b \nnot a host\n");
  std::vector<std::string> const hosts = {"a", "b"};
  BOOST_TEST(config::node_hosts("@" + file.path) == hosts);
  file.write("c");
  BOOST_TEST(config::node_hosts("@" + file.path) == std::vector<std::string>{"c"});
}

BOOST_AUTO_TEST_SUITE_END()

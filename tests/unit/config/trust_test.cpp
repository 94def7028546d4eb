// The users and groups of SIDESTEP_TRUST.
#include "config/trust.hpp"

#include <boost/test/unit_test.hpp>

using sidestep::config::Trust;
using sidestep::config::valid_trust;

namespace {

constexpr const char* kPasswd =
    "root:x:0:0:root:/root:/bin/bash\nnginx:x:101:102::/:/bin/false\n"
    "broken\nbad:x:many:1::/:\nlast:x:1000:1000::/:/bin/sh";
constexpr const char* kGroup = "root:x:0:\nweb:x:500:nginx,other\nnginx:x:102:\n";

struct Found {
  Trust trust;
  std::vector<std::string> unknown;
};

Found of(const char* text) {
  Found found;
  found.trust = Trust::of(text, kPasswd, kGroup, found.unknown);
  return found;
}

bool trusts(const Found& found, uid_t uid, std::initializer_list<gid_t> gids = {}) {
  return found.trust.trusts(uid, {gids.begin(), gids.size()});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(trust)

BOOST_AUTO_TEST_CASE(what_is_well_formed) {
  for (const char* good :
       {"", "nginx", " nginx , 1000 ", "@web,@500", "a.b-c_d", "host$", "4294967294"})
    BOOST_CHECK_MESSAGE(valid_trust(good), good);
  for (const char* bad : {",", "a,,b", "@", "@@web", "-a", "a b", "a/b", "*", "4294967295",
                          "99999999999", "abcdefghijklmnopqrstuvwxyzabcdefg"})
    BOOST_CHECK_MESSAGE(!valid_trust(bad), bad);
}

BOOST_AUTO_TEST_CASE(nobody_is_trusted_without_a_list) {
  const Found found = of("");
  BOOST_CHECK(found.trust.trusts_nobody());
  BOOST_CHECK(!trusts(found, 0, {0}));
}

BOOST_AUTO_TEST_CASE(names_and_numbers_of_users) {
  const Found found = of("nginx, 77,last");
  BOOST_CHECK(found.unknown.empty());
  BOOST_CHECK(!found.trust.trusts_nobody());
  for (const uid_t uid : {101U, 77U, 1000U}) BOOST_CHECK(trusts(found, uid));
  // A group with the number of a trusted user does not count.
  BOOST_CHECK(!trusts(found, 1, {101, 77, 1000}));
  BOOST_CHECK(!trusts(found, 0));
}

BOOST_AUTO_TEST_CASE(any_of_a_process_s_groups_counts) {
  const Found found = of("@web,@9");
  BOOST_CHECK(trusts(found, 1, {3, 500}));
  BOOST_CHECK(trusts(found, 1, {9}));
  BOOST_CHECK(!trusts(found, 500, {3, 101}));
  BOOST_CHECK(!trusts(found, 9));
}

BOOST_AUTO_TEST_CASE(names_that_are_not_there_trust_nobody) {
  const Found found = of("nobodyhere,@nginx,@last,bad,broken,root");
  BOOST_CHECK((found.unknown == std::vector<std::string>{"nobodyhere", "@last", "bad", "broken"}));
  BOOST_CHECK(trusts(found, 0));
  BOOST_CHECK(trusts(found, 5, {102}));
  BOOST_CHECK(!trusts(found, 101));
  BOOST_CHECK(!trusts(found, 1));
}

BOOST_AUTO_TEST_CASE(this_system_s_files_are_read) {
  std::vector<std::string> unknown;
  const Trust trust = Trust::read("root,@root", unknown);
  BOOST_CHECK(unknown.empty());
  BOOST_CHECK(trust.trusts(0, {}));
}

BOOST_AUTO_TEST_SUITE_END()

#include "engine/base/reason.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>
#include <string_view>

using namespace sidestep::engine;

BOOST_AUTO_TEST_SUITE(reason)

BOOST_AUTO_TEST_CASE(each_has_a_code_and_a_text_of_its_own) {
  std::set<std::string> codes;
  std::set<std::string> texts;
  for (const Reason one : all_reasons()) {
    BOOST_TEST(codes.insert(code_of(one)).second, code_of(one));
    BOOST_TEST(texts.insert(text_of(one)).second, text_of(one));
  }
  BOOST_CHECK(!codes.contains(""));
  BOOST_CHECK(!texts.contains(""));
}

BOOST_AUTO_TEST_CASE(each_is_explained_by_whole_sentences) {
  for (const Reason one : all_reasons()) {
    const std::string_view text = explanation_of(one);
    BOOST_TEST(text.ends_with('.'), code_of(one));
    BOOST_TEST((!text.empty() && text.front() >= 'A' && text.front() <= 'Z'), code_of(one));
  }
}

BOOST_AUTO_TEST_CASE(the_table_is_in_the_order_of_the_enumeration) {
  for (size_t i = 0; i < all_reasons().size(); ++i)
    BOOST_CHECK_EQUAL(static_cast<size_t>(all_reasons()[i]), i + 1);
  BOOST_CHECK_EQUAL(std::string(code_of(Reason::peer_moved_it)), "peer_moved_it");
  BOOST_CHECK_EQUAL(std::string(text_of(Reason::peer_moved_it)), "the peer moved it down");
  BOOST_CHECK(is_for_good(Reason::fork) && !is_for_good(Reason::asking));
}

BOOST_AUTO_TEST_CASE(there_is_none) {
  BOOST_CHECK_EQUAL(std::string(code_of(Reason::none)), "");
  BOOST_CHECK_EQUAL(std::string(text_of(Reason::none)), "");
}

BOOST_AUTO_TEST_SUITE_END()

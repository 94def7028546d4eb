#include "engine/base/descriptor_set.hpp"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <thread>
#include <vector>

using sidestep::engine::DescriptorSet;

namespace {

std::vector<int> members(const DescriptorSet& set) {
  std::vector<int> all;
  for (int fd = set.next(0); fd >= 0; fd = set.next(fd + 1)) all.push_back(fd);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(descriptor_set)

BOOST_AUTO_TEST_CASE(holds_what_was_put_in_and_not_taken_out) {
  const auto set = std::make_unique<DescriptorSet>();
  BOOST_CHECK_EQUAL(set->next(0), -1);
  const std::vector<int> numbers{0, 1, 63, 64, 4095, 4096, 300'000, DescriptorSet::kSize - 1};
  for (const int fd : numbers) set->insert(fd);
  for (const int fd : numbers) BOOST_CHECK(set->contains(fd));
  BOOST_CHECK(!set->contains(2));
  BOOST_TEST(members(*set) == numbers, boost::test_tools::per_element());
  BOOST_CHECK_EQUAL(set->next(2), 63);
  BOOST_CHECK_EQUAL(set->next(4097), 300'000);
  for (const int fd : {0, 64, DescriptorSet::kSize - 1}) set->erase(fd);
  set->erase(5);
  BOOST_TEST(members(*set) == (std::vector<int>{1, 63, 4095, 4096, 300'000}),
             boost::test_tools::per_element());
  BOOST_CHECK_EQUAL(set->next(300'001), -1);
}

BOOST_AUTO_TEST_CASE(numbers_that_no_descriptor_has_are_in_no_set) {
  const auto set = std::make_unique<DescriptorSet>();
  for (const int fd : {-1, DescriptorSet::kSize, 1 << 30}) {
    set->insert(fd);
    BOOST_CHECK(!set->contains(fd));
    BOOST_CHECK_EQUAL(set->next(fd), -1);
    set->erase(fd);
  }
  BOOST_CHECK_EQUAL(set->next(0), -1);
}

BOOST_AUTO_TEST_CASE(threads_that_share_words_lose_nothing) {
  const auto set = std::make_unique<DescriptorSet>();
  std::vector<std::thread> threads;
  for (int own = 0; own < 4; ++own) {
    threads.emplace_back([&, own] {
      for (int round = 0; round < 3; ++round) {
        for (int fd = own; fd < 20'000; fd += 4) set->insert(fd);
        for (int fd = own; fd < 20'000; fd += 8) set->erase(fd);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_CHECK_EQUAL(members(*set).size(), 10'000);
}

BOOST_AUTO_TEST_SUITE_END()

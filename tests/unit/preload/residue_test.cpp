#include "preload/residue.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string>
#include <vector>

using sidestep::preload::Residue;

namespace {

std::string read_from(Residue& residue, size_t most, bool peek = false) {
  std::string text(most, '\0');
  const iovec part{text.data(), text.size()};
  text.resize(residue.read(&part, 1, 0, peek));
  return text;
}

Residue* filled_with(std::string_view text) {
  Residue* residue = Residue::create(text.size());
  BOOST_REQUIRE(residue != nullptr);
  residue->append(reinterpret_cast<const std::byte*>(text.data()), text.size());
  return residue;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(residue)

BOOST_AUTO_TEST_CASE(bytes_are_read_once_and_in_order) {
  Residue* residue = filled_with("hello world");
  BOOST_CHECK_EQUAL(residue->left(), 11u);
  BOOST_CHECK_EQUAL(read_from(*residue, 5, true), "hello");
  BOOST_CHECK_EQUAL(read_from(*residue, 5), "hello");
  BOOST_CHECK_EQUAL(read_from(*residue, 100), " world");
  BOOST_CHECK_EQUAL(read_from(*residue, 100), "");
  BOOST_CHECK_EQUAL(residue->left(), 0u);
  Residue::release(residue);
}

BOOST_AUTO_TEST_CASE(a_vector_is_filled_from_the_offset_on) {
  Residue* residue = filled_with("abcdefg");
  char first[4] = "...";
  char second[6] = ".....";
  const iovec parts[2] = {{first, 3}, {second, 5}};
  BOOST_CHECK_EQUAL(residue->read(parts, 2, 2, false), 6u);
  BOOST_CHECK_EQUAL(std::string(first), "..a");
  BOOST_CHECK_EQUAL(std::string(second), "bcdef");
  BOOST_CHECK_EQUAL(residue->read(parts, 2, 7, false), 1u);
  BOOST_CHECK_EQUAL(std::string(second), "bcdeg");
  Residue::release(residue);
}

BOOST_AUTO_TEST_CASE(more_than_there_can_be_is_refused) {
  // The size is what a peer claims to have sent.
  for (const size_t size :
       {SIZE_MAX, SIZE_MAX - 8, SIZE_MAX - sizeof(Residue) + 1, Residue::kMost + 1})
    BOOST_CHECK(Residue::create(size) == nullptr);
}

BOOST_AUTO_TEST_CASE(parent_and_child_take_every_byte_exactly_once) {
  constexpr size_t kSize = 200'000;
  std::string text(kSize, '\0');
  for (size_t i = 0; i < kSize; i += 4) {
    const auto number = static_cast<uint32_t>(i);
    std::memcpy(text.data() + i, &number, 4);
  }
  Residue* residue = filled_with(text);
  int report[2];
  BOOST_REQUIRE_EQUAL(pipe(report), 0);
  const auto take_all = [&](auto use) {
    for (std::string piece; !(piece = read_from(*residue, 4 * 50)).empty();)
      for (size_t at = 0; at < piece.size(); at += 4) {
        uint32_t number = 0;
        std::memcpy(&number, piece.data() + at, 4);
        use(number);
      }
  };
  const pid_t child = fork();
  if (child == 0) {
    close(report[0]);
    bool written = true;
    take_all([&](uint32_t number) { written &= write(report[1], &number, 4) == 4; });
    _exit(written ? 0 : 1);
  }
  close(report[1]);
  std::vector<int> seen(kSize / 4);
  take_all([&](uint32_t number) { ++seen.at(number / 4); });
  for (uint32_t number; read(report[0], &number, 4) == 4;) ++seen.at(number / 4);
  close(report[0]);
  int status = -1;
  waitpid(child, &status, 0);
  BOOST_CHECK_EQUAL(status, 0);
  BOOST_CHECK(std::vector<int>(kSize / 4, 1) == seen);
  Residue::release(residue);
}

BOOST_AUTO_TEST_CASE(a_process_that_dies_between_two_reads_takes_nothing_from_the_other) {
  Residue* residue = filled_with("abcdef");
  const pid_t child = fork();
  if (child == 0) {
    read_from(*residue, 2);
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  BOOST_CHECK_EQUAL(read_from(*residue, 100), "cdef");
  Residue::release(residue);
}

BOOST_AUTO_TEST_CASE(what_finds_no_room_is_refused_and_changes_nothing) {
  Residue* residue = Residue::create(8);
  const std::byte data[9]{};
  BOOST_CHECK(!residue->append(data, 9));
  BOOST_CHECK(residue->append(data, 5));
  BOOST_CHECK(!residue->append(data, 4));
  BOOST_CHECK_EQUAL(residue->left(), 5u);
  BOOST_CHECK(residue->append(data, 3));
  BOOST_CHECK_EQUAL(residue->left(), 8u);
  Residue::release(residue);
}

BOOST_AUTO_TEST_SUITE_END()

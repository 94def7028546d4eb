// The names of nodes: those in the kernel, and files in a folder.
#include "engine/control/node_names.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/private_fd.hpp"
#include "engine/wire/version.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace sidestep::engine;
namespace fs = std::filesystem;

namespace {

struct Folder {
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename());
    return names;
  }

  sidestep::tests::TemporaryFolder own;
  fs::path path = own.path();
};

std::vector<uint16_t> listed(const NodeNames& names) {
  return names.list().value();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(node_names)

BOOST_AUTO_TEST_CASE(a_file_is_a_name) {
  const Folder folder;
  const NodeNames names(folder.path);
  BOOST_CHECK_EQUAL(names.open_link(7), -ECONNREFUSED);
  const PrivateFd first(names.listen_as(7));
  const PrivateFd second(names.listen_as(65535));
  BOOST_REQUIRE_GE(first.get(), 0);
  BOOST_CHECK_EQUAL(names.listen_as(7), -EADDRINUSE);
  BOOST_TEST(listed(names) == (std::vector<uint16_t>{7, 65535}));
  BOOST_TEST(listed(NodeNames()) != listed(names));
  const PrivateFd link(names.open_link(7));
  BOOST_CHECK_GE(link.get(), 0);
  BOOST_CHECK_EQUAL(folder.files().size(), 2u);  // nothing else is left
  names.take_away(7);
  BOOST_TEST(listed(names) == std::vector<uint16_t>{65535});
}

BOOST_AUTO_TEST_CASE(a_directory_has_its_own_names) {
  const Folder folder;
  const NodeNames names(folder.path);
  const PrivateFd seat(names.listen_for_directory(1));
  BOOST_REQUIRE_GE(seat.get(), 0);
  BOOST_CHECK_EQUAL(names.listen_for_directory(1), -EADDRINUSE);
  BOOST_CHECK_GE(PrivateFd(names.open_link_to_directory(getuid(), 1)).get(), 0);
  BOOST_CHECK_EQUAL(names.open_link_to_directory(getuid() + 1, 1), -ECONNREFUSED);
  BOOST_CHECK(listed(names).empty());
  names.take_away_directory(1);
  BOOST_CHECK(folder.files().empty());
}

BOOST_AUTO_TEST_CASE(what_the_killed_have_left_is_taken_over) {
  const Folder folder;
  const NodeNames names(folder.path);
  for (const uint16_t nid : std::vector<uint16_t>{1, 2, 3})
    private_fd_close(names.listen_as(nid));  // the name is not taken away
  private_fd_close(names.listen_for_directory(0));
  const PrivateFd lives(names.listen_as(4));
  BOOST_TEST(listed(names) == (std::vector<uint16_t>{1, 2, 3, 4}));
  const PrivateFd again(names.listen_as(2));
  BOOST_CHECK_GE(again.get(), 0);
  BOOST_TEST(listed(names) == (std::vector<uint16_t>{2, 4}));
  BOOST_CHECK_GE(PrivateFd(names.open_link(4)).get(), 0);
}

BOOST_AUTO_TEST_CASE(what_others_put_there_is_left_alone) {
  const Folder folder;
  const NodeNames names(folder.path);
  const std::string prefix = "sidestep." + std::to_string(kProtocolVersion) + ".";
  std::ofstream(folder.path / (prefix + "5")) << "no socket";
  std::ofstream(folder.path / "notes") << "of somebody";
  fs::create_directory(folder.path / (prefix + "6"));
  fs::create_symlink("/dev/null", folder.path / (prefix + "8"));
  for (const char* const no_number : {"", "x", "0", "65536", "7x", "-1", "directory.0.0"})
    std::ofstream(folder.path / (prefix + no_number)) << "";
  const auto before = folder.files();
  names.sweep();
  auto after = folder.files();
  std::erase_if(after, [](const std::string& name) { return name.starts_with(".lock."); });
  BOOST_TEST(after == before);
  BOOST_TEST(listed(names) == (std::vector<uint16_t>{5, 6, 8}));
  for (const uint16_t nid : std::vector<uint16_t>{5, 6, 8}) {
    BOOST_CHECK_LT(names.open_link(nid), 0);
    BOOST_CHECK_EQUAL(names.listen_as(nid), -EADDRINUSE);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_there_gives_no_name) {
  const NodeNames absent("/nowhere/at/all");
  BOOST_CHECK_EQUAL(absent.listen_as(1), -ENOENT);
  BOOST_CHECK_LT(absent.open_link(1), 0);
  BOOST_CHECK(listed(absent).empty());
  absent.sweep();
  const NodeNames long_one("/" + std::string(200, 'x'));
  BOOST_CHECK_EQUAL(long_one.listen_as(1), -ENAMETOOLONG);
  BOOST_CHECK_EQUAL(long_one.open_link(1), -ENAMETOOLONG);
}

BOOST_AUTO_TEST_CASE(one_of_those_who_want_a_name_gets_it) {
  const Folder folder;
  const NodeNames names(folder.path);
  for (int round = 0; round < 50; ++round) {
    private_fd_close(names.listen_as(9));  // leaves the name behind each time
    std::vector<int> got(4, -1);
    std::vector<std::thread> threads;
    for (int& one : got) threads.emplace_back([&] { one = names.listen_as(9); });
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    for (const int fd : got) {
      if (fd >= 0) ++winners;
      if (fd < 0) BOOST_CHECK_EQUAL(fd, -EADDRINUSE);
    }
    BOOST_CHECK_LE(winners, 1);
    if (winners == 1) BOOST_CHECK_GE(PrivateFd(names.open_link(9)).get(), 0);
    for (const int fd : got) private_fd_close(fd);
  }
}

BOOST_AUTO_TEST_SUITE_END()

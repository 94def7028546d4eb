#include "engine/control/cluster_key.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.hpp"

using namespace sidestep::engine;
using State = ClusterKey::State;

namespace {

const std::string kSecret = "0123456789abcdef";
constexpr uid_t kSomebody = 4711;

ClusterKey key_of(const std::string& bytes) {
  return {bytes.data(), bytes.size()};
}

DiscoveryMessage a_message() {
  DiscoveryHeader header;
  header.question = 0x1234567890abcdef;
  header.from = 1;
  header.to = 2;
  datagram::Connect request;
  request.endpoint.qp = 3;
  request.number = 80;
  return {header, request};
}

sidestep::config::Config asking_for(const std::string& path, bool allows_none) {
  sidestep::config::Config config;
  config.key_file = path;
  config.allow_no_key = allows_none;
  return config;
}

DiscoveryMessage signed_by(const ClusterKey& key) {
  DiscoveryMessage message = a_message();
  key.sign(message);
  return message;
}

/// A key file in a folder of its own.
struct KeyFile {
  explicit KeyFile(const std::string& bytes = kSecret, mode_t mode = 0600) {
    std::ofstream(path, std::ios::binary) << bytes;
    allow(mode);
  }
  void allow(mode_t mode) const { BOOST_REQUIRE_EQUAL(chmod(path.c_str(), mode), 0); }

  sidestep::tests::TemporaryFolder own;
  std::filesystem::path folder = own.path();
  std::filesystem::path path = folder / "key";
};

/// Returns what is wrong with the file; "" if nothing is.
std::string fault(const std::filesystem::path& path) {
  std::string why;
  const ClusterKey key = ClusterKey::read(path.string(), why);
  BOOST_CHECK(key.state() == (why.empty() ? State::usable : State::unusable));
  return why;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cluster_key)

BOOST_AUTO_TEST_CASE(who_has_the_key_knows_its_messages) {
  const ClusterKey key = key_of(kSecret);
  BOOST_REQUIRE(key.state() == State::usable);
  const DiscoveryMessage message = signed_by(key);
  BOOST_CHECK(key.verify(message));
  BOOST_CHECK(key_of(kSecret).verify(message));
  // Signing changes nothing but the code.
  const DiscoveryMessage sent = a_message();
  BOOST_CHECK_EQUAL(std::memcmp(&message, &sent, offsetof(DiscoveryMessage, mac)), 0);
}

BOOST_AUTO_TEST_CASE(the_code_is_the_hmac_with_the_hash_of_the_key) {
  const DiscoveryMessage message = signed_by(key_of(kSecret));
  const Digest key = sha256(kSecret.data(), kSecret.size());
  BOOST_CHECK(message.mac == hmac_sha256(key.data(), key.size(), &message, 120));
}

BOOST_AUTO_TEST_CASE(a_message_that_is_signed_again_is_right_again) {
  const ClusterKey key = key_of(kSecret);
  DiscoveryMessage message = signed_by(key);
  ++message.header.to;
  BOOST_CHECK(!key.verify(message));
  key.sign(message);
  BOOST_CHECK(key.verify(message));
}

BOOST_AUTO_TEST_CASE(a_message_with_any_bit_changed_is_refused) {
  const ClusterKey key = key_of(kSecret);
  const DiscoveryMessage message = signed_by(key);
  for (size_t byte = 0; byte < sizeof message; ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      DiscoveryMessage changed = message;
      reinterpret_cast<unsigned char*>(&changed)[byte] ^= static_cast<unsigned char>(1 << bit);
      BOOST_CHECK_MESSAGE(!key.verify(changed), "bit " << bit << " of byte " << byte);
    }
}

BOOST_AUTO_TEST_CASE(another_key_and_none_are_refused) {
  const ClusterKey key = key_of(kSecret);
  const ClusterKey none;
  BOOST_CHECK(none.state() == State::none);
  BOOST_CHECK(!key_of(kSecret + "\n").verify(signed_by(key)));
  BOOST_CHECK(!key_of("0123456789abcdeF").verify(signed_by(key)));
  BOOST_CHECK(!key.verify(signed_by(none)));
  BOOST_CHECK(!none.verify(signed_by(key)));
  BOOST_CHECK(none.verify(signed_by(none)));
  BOOST_CHECK(signed_by(none).mac == Digest{});
  // A node without a key clears the code in the message that it turns into an answer.
  DiscoveryMessage message = signed_by(key);
  none.sign(message);
  BOOST_CHECK(message.mac == Digest{});
}

BOOST_AUTO_TEST_CASE(an_unusable_key_takes_nothing) {
  for (const size_t size : {size_t{0}, size_t{15}, size_t{4097}}) {
    const ClusterKey key = key_of(std::string(size, 'x'));
    BOOST_CHECK(key.state() == State::unusable);
    BOOST_CHECK(!key.verify(signed_by(ClusterKey())));
    BOOST_CHECK(!key.verify(signed_by(key_of(kSecret))));
  }
  BOOST_CHECK(key_of(std::string(16, 'x')).state() == State::usable);
  BOOST_CHECK(key_of(std::string(4096, 'x')).state() == State::usable);
}

BOOST_AUTO_TEST_CASE(no_file_is_no_key) {
  std::string why;
  BOOST_CHECK(ClusterKey::read("", why).state() == State::none);
  BOOST_CHECK(ClusterKey::load(asking_for("", true)).state() == State::none);
  BOOST_CHECK_EQUAL(why, "");
}

BOOST_AUTO_TEST_CASE(a_file_that_cannot_be_used_is_not_the_same_as_none) {
  const KeyFile file("too short");
  for (const bool allows_none : {false, true}) {
    for (const auto& path : {file.path, file.folder / "absent"}) {
      const ClusterKey key = ClusterKey::load(asking_for(path, allows_none));
      BOOST_CHECK(key.state() == State::unusable);
      BOOST_CHECK(!key.lets_talk());
    }
  }
}

BOOST_AUTO_TEST_CASE(without_a_file_nobody_is_believed_unless_that_is_allowed) {
  const ClusterKey missing = ClusterKey::load(asking_for("", false));
  BOOST_CHECK(missing.state() == State::missing);
  BOOST_CHECK(!missing.lets_talk());
  BOOST_CHECK(!missing.verify(signed_by(ClusterKey())));
  BOOST_CHECK(ClusterKey::load(asking_for("", true)).lets_talk());
  const KeyFile file("a key that is long enough");
  for (const bool allows_none : {false, true})
    BOOST_CHECK(ClusterKey::load(asking_for(file.path, allows_none)).state() == State::usable);
}

BOOST_AUTO_TEST_CASE(all_bytes_of_the_file_are_the_key) {
  const std::string bytes("\0\n \xff 0123456789abcdef\n\0", 23);
  const KeyFile file(bytes);
  std::string why;
  const ClusterKey key = ClusterKey::read(file.path, why);
  BOOST_REQUIRE_EQUAL(why, "");
  BOOST_CHECK(key.verify(signed_by(key_of(bytes))));
}

BOOST_AUTO_TEST_CASE(a_file_of_another_size_is_no_key) {
  BOOST_CHECK_EQUAL(fault(KeyFile("").path), "it has only 0 bytes");
  BOOST_CHECK_EQUAL(fault(KeyFile(std::string(15, 'x')).path), "it has only 15 bytes");
  BOOST_CHECK_EQUAL(fault(KeyFile(std::string(16, 'x')).path), "");
  BOOST_CHECK_EQUAL(fault(KeyFile(std::string(4096, 'x')).path), "");
  BOOST_CHECK_EQUAL(fault(KeyFile(std::string(4097, 'x')).path), "it is too long");
  BOOST_CHECK_EQUAL(fault(KeyFile(std::string(100'000, 'x')).path), "it is too long");
}

BOOST_AUTO_TEST_CASE(what_is_no_regular_file_is_no_key) {
  const KeyFile file;
  BOOST_CHECK_EQUAL(fault(file.folder), "it is not a regular file");
  BOOST_CHECK_EQUAL(fault("/dev/zero"), "it is not a regular file");
  const auto pipe = file.folder / "pipe";
  BOOST_REQUIRE_EQUAL(mkfifo(pipe.c_str(), 0600), 0);
  BOOST_CHECK_EQUAL(fault(pipe), "it is not a regular file");  // does not wait for a writer
  BOOST_CHECK_EQUAL(fault(file.folder / "absent"), "it can't be opened: No such file or directory");
  const auto link = file.folder / "link";
  std::filesystem::create_symlink(file.path, link);
  BOOST_CHECK_EQUAL(fault(link), "");
}

BOOST_AUTO_TEST_CASE(a_file_that_others_can_use_is_no_key) {
  const KeyFile file;
  for (const mode_t mode : {0604U, 0602U, 0606U, 0644U, 0666U, 0404U}) {
    file.allow(mode);
    BOOST_CHECK_EQUAL(fault(file.path), "everybody can read or write it");
  }
  for (const mode_t mode : {0620U, 0660U}) {
    file.allow(mode);
    BOOST_CHECK_EQUAL(fault(file.path), "its group can write it");
  }
  for (const mode_t mode : {0600U, 0400U, 0700U}) {
    file.allow(mode);
    BOOST_CHECK_EQUAL(fault(file.path), "");
  }
}

BOOST_AUTO_TEST_CASE(a_group_may_read_a_file_of_root_only) {
  const KeyFile file(kSecret, 0640);
  BOOST_CHECK_EQUAL(fault(file.path), geteuid() == 0 ? "" : "its group can read it");
}

BOOST_AUTO_TEST_CASE(a_file_of_somebody_else_is_no_key) {
  const KeyFile file;
  if (geteuid() != 0 || chown(file.path.c_str(), kSomebody, 0) != 0) {
    BOOST_TEST_MESSAGE("NOT TESTED: only root can give a file away");
    return;
  }
  BOOST_CHECK_EQUAL(fault(file.path), "it belongs to another user");
}

BOOST_AUTO_TEST_SUITE_END()

#include "engine/control/control_link.hpp"
#include "engine/control/node_names.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/private_fd.hpp"

using namespace sidestep::engine;

namespace {

/// A NID that no other process has at this moment, and the socket that holds it.
struct Claim {
  Claim() {
    for (nid = 40'000; (fd = NodeNames().listen_as(nid)) == -EADDRINUSE && nid < 50'000;) ++nid;
    BOOST_REQUIRE_GE(fd, 0);
  }
  ~Claim() { private_fd_close(fd); }
  uint16_t nid = 0;
  int fd = -1;
};

struct LinkPair {
  LinkPair() { BOOST_REQUIRE_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0); }
  ~LinkPair() {
    for (const int fd : fds)
      if (fd >= 0) close(fd);
  }
  int fds[2];
};

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

/// Sends any bytes with any number of descriptors.
void send_raw(int link, const void* data, size_t size, const std::vector<int>& fds = {}) {
  iovec part{const_cast<void*>(data), size};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * std::max<size_t>(fds.size(), 1)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
  }
  BOOST_REQUIRE_EQUAL(sendmsg(link, &header, MSG_NOSIGNAL), static_cast<ssize_t>(size));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(control_link)

BOOST_AUTO_TEST_CASE(the_map_of_the_first_user_namespace_has_all_users) {
  BOOST_CHECK(maps_all_users("         0          0 4294967295\n"));
  BOOST_CHECK(maps_all_users("0 100000 4294967295"));
  for (const char* const map :
       {"", "\n", "         0     100000      65536\n", "0 0", "0 0 x\n",
        "         0       1000          1\n", "1 1 4294967294\n", "0 0 18446744073709551616\n"})
    BOOST_CHECK(!maps_all_users(map));
}

BOOST_AUTO_TEST_CASE(a_nid_belongs_to_one_process_until_it_lets_go) {
  uint16_t nid = 0;
  {
    const Claim claim;
    nid = claim.nid;
    BOOST_CHECK_EQUAL(NodeNames().listen_as(nid), -EADDRINUSE);
    const auto names = NodeNames().list().value();
    BOOST_CHECK(std::find(names.begin(), names.end(), nid) != names.end());
    BOOST_CHECK(std::is_sorted(names.begin(), names.end()));
  }
  const int again = NodeNames().listen_as(nid);
  BOOST_CHECK_GE(again, 0);
  private_fd_close(again);
  BOOST_CHECK_EQUAL(NodeNames().open_link(nid), -ECONNREFUSED);
}

BOOST_AUTO_TEST_CASE(a_link_shows_who_is_at_the_other_end) {
  const Claim claim;
  const int link = NodeNames().open_link(claim.nid);
  BOOST_REQUIRE_GE(link, 0);
  const LinkPeer peer = peer_of(link);
  BOOST_CHECK_EQUAL(peer.pid, getpid());
  BOOST_CHECK_EQUAL(peer.uid, getuid());
  BOOST_CHECK(peer.is_own);
  BOOST_CHECK_EQUAL(peer_of(-1).pid, -1);
  private_fd_close(link);
}

BOOST_AUTO_TEST_CASE(a_message_arrives_with_its_descriptors) {
  const LinkPair link;
  control::Connect request;
  request.endpoint.orb_size = 1 << 20;
  request.lane = 3;
  const int event = eventfd(5, EFD_CLOEXEC);
  BOOST_REQUIRE_EQUAL(send_message(link.fds[0], request, event, event), 0);
  close(event);
  Received received;
  BOOST_REQUIRE_EQUAL(receive_message(link.fds[1], received), 1);
  BOOST_REQUIRE(received.message.type() == ControlType::connect);
  BOOST_CHECK_EQUAL(received.message.as<control::Connect>().endpoint.orb_size, 1u << 20);
  BOOST_CHECK_EQUAL(received.message.as<control::Connect>().lane, 3u);
  BOOST_REQUIRE(received.fds[0] >= 0 && received.fds[1] >= 0);
  BOOST_CHECK((fcntl(received.fds[0], F_GETFD) & FD_CLOEXEC) != 0);
  uint64_t value = 0;
  BOOST_CHECK_EQUAL(read(received.fds[1], &value, sizeof value), 8);
  BOOST_CHECK_EQUAL(value, 5u);
  received.close_fds();
  BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), -EAGAIN);
}

BOOST_AUTO_TEST_CASE(the_end_of_the_other_process_is_told_from_silence) {
  LinkPair link;
  Received received;
  BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), -EAGAIN);
  close(link.fds[0]);
  link.fds[0] = -1;
  BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), 0);
}

BOOST_AUTO_TEST_CASE(each_type_has_the_size_of_its_payload) {
  const LinkPair link;
  const ControlMessage bytes;
  for (uint16_t type = 1; type <= static_cast<uint16_t>(ControlType::path_ok); ++type) {
    const size_t size = ControlMessage::size_of(type);
    BOOST_CHECK_GE(size, sizeof(ControlHeader));
    BOOST_CHECK_LE(size, sizeof(ControlMessage));
    for (const size_t sent : {size - 1, size, size + 1}) {
      ControlHeader header;
      header.type = type;
      char data[sizeof bytes + 1] = {};
      std::memcpy(data, &header, sizeof header);
      send_raw(link.fds[0], data, sent);
      Received received;
      BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), sent == size ? 1 : -EPROTO);
    }
  }
  BOOST_CHECK_EQUAL(ControlMessage::size_of(static_cast<uint16_t>(ControlType::status)),
                    sizeof(ControlHeader));
  for (const uint16_t none : {uint16_t{0}, uint16_t{19}, uint16_t{0xffff}})
    BOOST_CHECK_EQUAL(ControlMessage::size_of(none), 0u);
}

BOOST_AUTO_TEST_CASE(what_is_no_message_is_refused_and_leaves_no_descriptor) {
  const LinkPair link;
  const int event = eventfd(0, EFD_CLOEXEC);
  const size_t before = open_descriptors();
  const ControlMessage sound = control::Find{};
  const size_t size_of_sound = ControlMessage::size_of(sound.header.type);
  ControlMessage other_version = sound;
  other_version.header.version = kProtocolVersion + 1;
  ControlMessage other_magic = sound;
  other_magic.header.magic ^= 1;
  ControlMessage other_type = sound;
  other_type.header.type = 19;
  const struct {
    const void* data;
    size_t size;
  } bad[] = {{&sound, size_of_sound - 1},   {&sound, 1},
             {&sound, size_of_sound + 1},   {&other_version, size_of_sound},
             {&other_magic, size_of_sound}, {&other_type, size_of_sound}};
  for (const auto& [data, size] : bad) {
    for (size_t fds = 0; fds <= 2; ++fds) {
      send_raw(link.fds[0], data, size, std::vector<int>(fds, event));
      Received received;
      BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), -EPROTO);
      BOOST_CHECK(received.fds[0] == -1 && received.fds[1] == -1);
    }
  }
  BOOST_CHECK_EQUAL(open_descriptors(), before);
  close(event);
}

BOOST_AUTO_TEST_CASE(a_message_is_read_when_no_descriptor_is_free_for_what_came_with_it) {
  const LinkPair link;
  const int event = eventfd(0, EFD_CLOEXEC);
  rlimit before{};
  BOOST_REQUIRE_EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (const size_t fds : {1u, 2u}) {
    const ControlMessage sound = control::Found{77};
    send_raw(link.fds[0], &sound, ControlMessage::size_of(sound.header.type),
             std::vector<int>(fds, event));
    const rlimit none{0, before.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    Received received;
    const int result = receive_message(link.fds[1], received);
    setrlimit(RLIMIT_NOFILE, &before);
    BOOST_CHECK_EQUAL(result, 1);
    BOOST_CHECK_EQUAL(received.message.as<control::Found>().query, 77u);
    BOOST_CHECK(received.fds[0] == -1 && received.fds[1] == -1);
  }
  close(event);
}

BOOST_AUTO_TEST_CASE(more_descriptors_than_a_message_has_are_refused_and_closed) {
  const LinkPair link;
  const int event = eventfd(0, EFD_CLOEXEC);
  const size_t before = open_descriptors();
  const ControlMessage sound = control::Find{};
  for (const size_t fds : {3u, 4u, 100u}) {
    send_raw(link.fds[0], &sound, ControlMessage::size_of(sound.header.type),
             std::vector<int>(fds, event));
    Received received;
    BOOST_CHECK_EQUAL(receive_message(link.fds[1], received), -EPROTO);
    received.close_fds();
  }
  BOOST_CHECK_EQUAL(open_descriptors(), before);
  close(event);
}

BOOST_AUTO_TEST_SUITE_END()

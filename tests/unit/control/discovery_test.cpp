#include "engine/control/discovery.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "engine/base/private_fd.hpp"
#include "engine/control/control_link.hpp"
#include "engine/control/node_names.hpp"

using namespace sidestep::engine;

namespace {

/// A UDP port of the kernel's choice. At first this object alone holds it, so no other program can
/// have chosen it. After share() others may bind it too, and leave() leaves it to them.
struct Port {
  Port() : fd(socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    BOOST_REQUIRE_EQUAL(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    socklen_t length = sizeof address;
    BOOST_REQUIRE_EQUAL(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
    number = ntohs(address.sin6_port);
  }
  ~Port() { leave(); }
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  void share() const {
    const int on = 1;
    BOOST_REQUIRE_EQUAL(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
  }
  void leave() {
    if (fd >= 0) close(fd);
    fd = -1;
  }

  int fd;
  uint16_t number = 0;
};

/// A Discovery whose sockets are closed at its end, as those of a process are when it ends.
struct Party : Discovery {
  explicit Party(uint16_t port, const ClusterKey& key = {}) : Discovery(port, key, refused) {
    open();
  }
  ~Party() {
    stop_answering();
    private_fd_close(asking_fd());
  }
  Party(const Party&) = delete;
  Party& operator=(const Party&) = delete;

  void stop_answering() {
    if (answers_) private_fd_close(answering_fd());
    answers_ = false;
  }

  Counter refused;

 private:
  bool answers_ = true;
};

/// Two parties on a port of their own.
struct Host {
  Port port;
  Party first;
  Party second;
  explicit Host(const ClusterKey& key = {})
      : first((port.share(), port.number), key), second(port.number, key) {
    port.leave();
    BOOST_REQUIRE_GE(first.answering_fd(), 0);
    BOOST_REQUIRE_GE(second.answering_fd(), 0);
    BOOST_REQUIRE_GE(first.asking_fd(), 0);
  }
};

Address loopback(uint16_t port = 0) {
  Address address;
  address.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  address.port = port;
  return address;
}

Tuple a_tuple() {
  return {loopback(1000), loopback(2000)};
}

/// Waits for a datagram at one of the sockets and returns that socket; -1 after two seconds.
int ready(const std::vector<int>& fds) {
  std::vector<pollfd> polled;
  for (const int fd : fds) polled.push_back({fd, POLLIN, 0});
  if (poll(polled.data(), polled.size(), 2000) <= 0) return -1;
  for (const pollfd& one : polled)
    if (one.revents != 0) return one.fd;
  return -1;
}

ClusterKey key_of(const std::string& bytes) {
  return {bytes.data(), bytes.size()};
}

DiscoveryMessage question(uint64_t number = 7) {
  DiscoveryHeader header;
  header.question = number;
  header.from = 1;
  datagram::WhoHas asked;
  asked.tuple = a_tuple();
  return {header, asked};
}

/// The answer to that question by a node of this NID.
DiscoveryMessage answer(const DiscoveryMessage& asked, uint16_t nid, OwnerAnswer what) {
  DiscoveryHeader header = asked.header.of_answer();
  header.from = 2;
  header.from_nid = nid;
  datagram::Owner said;
  said.tuple = asked.as<datagram::WhoHas>().tuple;
  said.answer = static_cast<uint32_t>(what);
  return {header, said};
}

void send_to(int fd, uint16_t port, const void* data, size_t size) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  to.sin6_port = htons(port);
  std::memcpy(&to.sin6_addr, loopback().ip.data(), 16);
  BOOST_REQUIRE_EQUAL(sendto(fd, data, size, 0, reinterpret_cast<sockaddr*>(&to), sizeof to),
                      static_cast<ssize_t>(size));
}

bool parses(const DiscoveryMessage& message) {
  DiscoveryMessage parsed;
  return Discovery::parse(&message, sizeof message, parsed);
}

/// A line of /proc/net/unix.
std::string line(const std::string& name) {
  return "0000000000000000: 00000003 00000000 00000000 0005 03 12345 " + name + "\n";
}

std::string node_name(const std::string& nid) {
  return "@sidestep." + std::to_string(kProtocolVersion) + "." + nid;
}

using Nids = std::vector<uint16_t>;

void check_names(const std::string& text, const Nids& expected) {
  const Nids found = NodeNames::parse(text);
  BOOST_CHECK_EQUAL_COLLECTIONS(found.begin(), found.end(), expected.begin(), expected.end());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(discovery)

BOOST_AUTO_TEST_CASE(a_sound_datagram_is_read_whole) {
  const DiscoveryMessage sent = answer(question(), 65535, OwnerAnswer::later);
  DiscoveryMessage parsed;
  BOOST_REQUIRE(Discovery::parse(&sent, sizeof sent, parsed));
  BOOST_CHECK_EQUAL(parsed.header.question, 7u);
  BOOST_CHECK_EQUAL(parsed.header.from_nid, 65535);
  const auto said = parsed.as<datagram::Owner>();
  BOOST_CHECK_EQUAL(said.answer, static_cast<uint32_t>(OwnerAnswer::later));
  BOOST_CHECK(said.tuple == a_tuple());
}

BOOST_AUTO_TEST_CASE(an_answer_goes_back_to_who_has_asked) {
  DiscoveryHeader asked;
  asked.question = 7;
  asked.from = 1;
  asked.from_nid = 10;
  asked.to = 2;
  asked.to_nid = 20;
  const DiscoveryHeader header = asked.of_answer();
  BOOST_CHECK_EQUAL(header.question, 7u);
  BOOST_CHECK_EQUAL(header.from, 2u);
  BOOST_CHECK_EQUAL(header.from_nid, 20u);
  BOOST_CHECK_EQUAL(header.to, 1u);
  BOOST_CHECK_EQUAL(header.to_nid, 10u);
}

BOOST_AUTO_TEST_CASE(a_datagram_has_nothing_behind_its_payload) {
  const DiscoveryMessage ready({}, datagram::Ready{});
  BOOST_CHECK_EQUAL(std::count(ready.payload.begin(), ready.payload.end(), 0),
                    static_cast<std::ptrdiff_t>(ready.payload.size()));
  const DiscoveryMessage leave({}, datagram::Leave{~0U});
  BOOST_CHECK_EQUAL(std::count(leave.payload.begin(), leave.payload.end(), 0xff), 4);
  BOOST_CHECK_EQUAL(std::count(leave.payload.begin(), leave.payload.end(), 0),
                    static_cast<std::ptrdiff_t>(leave.payload.size()) - 4);
}

BOOST_AUTO_TEST_CASE(a_datagram_of_another_size_is_refused) {
  const DiscoveryMessage sound = question();
  std::vector<unsigned char> bytes(sizeof sound + 1);
  std::memcpy(bytes.data(), &sound, sizeof sound);
  DiscoveryMessage parsed;
  for (size_t size = 0; size <= bytes.size(); ++size) {
    // The memory is exactly `size` bytes long, so reading a byte too far is detected.
    const std::vector<unsigned char> data(bytes.begin(),
                                          bytes.begin() + static_cast<std::ptrdiff_t>(size));
    BOOST_CHECK_EQUAL(Discovery::parse(data.data(), size, parsed), size == sizeof sound);
  }
}

BOOST_AUTO_TEST_CASE(a_datagram_that_is_not_ours_is_refused) {
  BOOST_CHECK(parses(question()));
  DiscoveryMessage bad = question();
  bad.header.magic ^= 1;
  BOOST_CHECK(!parses(bad));
  for (const int version : {0, kProtocolVersion + 1, 0xffff}) {
    bad = question();
    bad.header.version = static_cast<uint16_t>(version);
    BOOST_CHECK(!parses(bad));
  }
  for (const int type : {0, 13, 0x101, 0xffff}) {
    bad = question();
    bad.header.type = static_cast<uint16_t>(type);
    BOOST_CHECK(!parses(bad));
  }
  bad = question();
  bad.header.from = 0;
  BOOST_CHECK(!parses(bad));
}

BOOST_AUTO_TEST_CASE(a_payload_that_no_node_sends_is_refused) {
  for (const uint32_t what : {0u, 1u, 2u, 3u, 0x100u, ~0u})
    BOOST_CHECK_EQUAL(parses(answer(question(), 1, static_cast<OwnerAnswer>(what))), what <= 2);
  for (const uint32_t count : {0u, 1u, 2u, 3u, ~0u}) {
    datagram::Failed reports;
    reports.count = count;
    BOOST_CHECK_EQUAL(parses({question().header, reports}), count <= 2);
  }
}

BOOST_AUTO_TEST_CASE(a_datagram_leaves_from_the_address_that_it_is_to_leave_from) {
  Host host;
  const auto ask_from = [&](std::array<uint8_t, 4> ip) {
    Address own = loopback();
    std::copy(ip.begin(), ip.end(), own.ip.begin() + 12);
    BOOST_REQUIRE(host.first.ask(loopback(), own.ip, question()));
    const int at = ready({host.first.answering_fd(), host.second.answering_fd()});
    BOOST_REQUIRE_NE(at, -1);
    DiscoveryMessage message;
    sockaddr_in6 from{};
    BOOST_REQUIRE(host.first.receive(at, message, from));
    Address found;
    std::memcpy(found.ip.data(), &from.sin6_addr, found.ip.size());
    return ip_text(found);
  };
  BOOST_CHECK_EQUAL(ask_from({127, 0, 0, 77}), "127.0.0.77");
  // An address that this host does not have, or no longer has, does not stop the request.
  BOOST_CHECK_EQUAL(ask_from({192, 0, 2, 1}), "127.0.0.1");
}

BOOST_AUTO_TEST_CASE(a_question_and_its_answer_go_round) {
  Host host;
  Party& asker = host.first;
  constexpr uint64_t kQuestion = 0x1234567890abcdef;
  BOOST_REQUIRE(asker.ask(loopback(), {}, question(kQuestion)));
  // The kernel chooses one of the two sockets.
  const int at = ready({host.first.answering_fd(), host.second.answering_fd()});
  BOOST_REQUIRE_NE(at, -1);
  Party& asked = at == host.first.answering_fd() ? host.first : host.second;
  DiscoveryMessage message;
  sockaddr_in6 from{};
  BOOST_REQUIRE(asked.receive(at, message, from));
  BOOST_REQUIRE(message.type() == DiscoveryType::who_has);
  BOOST_CHECK_EQUAL(message.header.question, kQuestion);
  BOOST_CHECK(message.as<datagram::WhoHas>().tuple == a_tuple());
  BOOST_CHECK(!host.first.receive(host.first.answering_fd(), message, from));
  BOOST_CHECK(!host.second.receive(host.second.answering_fd(), message, from));

  asked.answer(from, {}, answer(message, 42, OwnerAnswer::yes));
  BOOST_REQUIRE_EQUAL(ready({asker.asking_fd()}), asker.asking_fd());
  BOOST_REQUIRE(asker.receive(asker.asking_fd(), message, from));
  BOOST_REQUIRE(message.type() == DiscoveryType::owner);
  BOOST_CHECK_EQUAL(message.header.question, kQuestion);
  BOOST_CHECK_EQUAL(message.header.from_nid, 42);
  const auto said = message.as<datagram::Owner>();
  BOOST_CHECK_EQUAL(said.answer, static_cast<uint32_t>(OwnerAnswer::yes));
  BOOST_CHECK(said.tuple == a_tuple());
  // The answer comes from the address and port that were asked, so the asker can recognize it.
  BOOST_CHECK_EQUAL(ntohs(from.sin6_port), host.port.number);
  BOOST_CHECK_EQUAL(std::memcmp(&from.sin6_addr, loopback().ip.data(), 16), 0);
}

BOOST_AUTO_TEST_CASE(the_port_is_the_others_when_one_goes) {
  Host host;
  host.first.stop_answering();
  const int answering = host.second.answering_fd();
  for (uint64_t i = 1; i <= 20; ++i) {
    // Each request comes from another port, by which the kernel chooses the socket.
    const int stranger = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    DiscoveryMessage message = question(i);
    send_to(stranger, host.port.number, &message, sizeof message);
    close(stranger);
    sockaddr_in6 from{};
    BOOST_REQUIRE_EQUAL(ready({answering}), answering);
    BOOST_REQUIRE(host.second.receive(answering, message, from));
    BOOST_CHECK_EQUAL(message.header.question, i);
  }
}

BOOST_AUTO_TEST_CASE(a_port_in_other_hands_is_taken_over_when_it_is_free) {
  Port port;  // not shared, as if a process of another user held it
  Party late(port.number);
  BOOST_CHECK_LT(late.answering_fd(), 0);
  BOOST_CHECK_GE(late.asking_fd(), 0);  // it can ask nevertheless
  BOOST_CHECK(!late.take_over());
  port.leave();
  BOOST_CHECK(late.take_over());
  BOOST_CHECK_GE(late.answering_fd(), 0);
  BOOST_CHECK(!late.take_over());  // it has the port already
}

BOOST_AUTO_TEST_CASE(datagrams_that_are_not_ours_are_passed_over) {
  Host host;
  host.second.stop_answering();
  const int answering = host.first.answering_fd();
  const int stranger = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const DiscoveryMessage sound = question();
  DiscoveryMessage other_magic = sound;
  other_magic.header.magic ^= 1;
  unsigned char longer[sizeof sound + 1] = {};
  std::memcpy(longer, &sound, sizeof sound);
  send_to(stranger, host.port.number, "", 0);
  send_to(stranger, host.port.number, &sound, sizeof sound - 1);
  send_to(stranger, host.port.number, longer, sizeof longer);
  send_to(stranger, host.port.number, &other_magic, sizeof other_magic);
  send_to(stranger, host.port.number, &sound, sizeof sound);
  close(stranger);

  DiscoveryMessage message;
  sockaddr_in6 from{};
  BOOST_REQUIRE_EQUAL(ready({answering}), answering);
  BOOST_REQUIRE(host.first.receive(answering, message, from));
  BOOST_CHECK_EQUAL(message.header.question, sound.header.question);
  BOOST_CHECK(!host.first.receive(answering, message, from));
}

BOOST_AUTO_TEST_CASE(with_the_same_key_a_question_and_its_answer_go_round) {
  Host host(key_of("the cluster's key"));
  host.second.stop_answering();
  Party& asker = host.second;
  Party& asked = host.first;
  BOOST_REQUIRE(asker.ask(loopback(), {}, question()));
  DiscoveryMessage message;
  sockaddr_in6 from{};
  BOOST_REQUIRE_EQUAL(ready({asked.answering_fd()}), asked.answering_fd());
  BOOST_REQUIRE(asked.receive(asked.answering_fd(), message, from));
  BOOST_CHECK(message.mac != Digest{});
  asked.answer(from, {}, answer(message, 42, OwnerAnswer::yes));
  BOOST_REQUIRE_EQUAL(ready({asker.asking_fd()}), asker.asking_fd());
  BOOST_CHECK(asker.receive(asker.asking_fd(), message, from));
  BOOST_CHECK(message.type() == DiscoveryType::owner);
  BOOST_CHECK_EQUAL(asker.refused.get() + asked.refused.get(), 0u);
}

BOOST_AUTO_TEST_CASE(without_the_same_key_datagrams_are_counted_and_dropped) {
  const ClusterKey none;
  const ClusterKey one = key_of("the cluster's key");
  const ClusterKey other = key_of("another one's key");
  for (const auto& [here, there] :
       {std::pair(one, other), std::pair(one, none), std::pair(none, one)}) {
    Host host(there);
    host.second.stop_answering();
    Party& asked = host.first;
    Port elsewhere;
    DiscoveryMessage message = question();
    here.sign(message);
    for (int i = 0; i < 2; ++i) send_to(elsewhere.fd, host.port.number, &message, sizeof message);
    there.sign(message);
    send_to(elsewhere.fd, host.port.number, &message, sizeof message);
    sockaddr_in6 from{};
    BOOST_REQUIRE_EQUAL(ready({asked.answering_fd()}), asked.answering_fd());
    DiscoveryMessage received;
    BOOST_CHECK(asked.receive(asked.answering_fd(), received, from));
    BOOST_CHECK(received.mac == message.mac);
    BOOST_CHECK(!asked.receive(asked.answering_fd(), received, from));
    BOOST_CHECK_EQUAL(asked.refused.get(), 2u);
  }
}

BOOST_AUTO_TEST_CASE(what_is_malformed_is_not_counted_as_refused) {
  Host host(key_of("the cluster's key"));
  host.second.stop_answering();
  Port elsewhere;
  DiscoveryMessage bad = question();
  bad.header.magic ^= 1;
  send_to(elsewhere.fd, host.port.number, &bad, sizeof bad);
  send_to(elsewhere.fd, host.port.number, &bad, sizeof bad - sizeof bad.mac);
  const int answering = host.first.answering_fd();
  BOOST_REQUIRE_EQUAL(ready({answering}), answering);
  DiscoveryMessage message;
  sockaddr_in6 from{};
  BOOST_CHECK(!host.first.receive(answering, message, from));
  BOOST_CHECK_EQUAL(host.first.refused.get(), 0u);
}

BOOST_AUTO_TEST_CASE(what_another_node_passes_on_is_checked_as_well) {
  // The node that passes a message on may have no key, or another one.
  Party party(0, key_of("the cluster's key"));
  DiscoveryMessage message = question();
  DiscoveryMessage admitted;
  BOOST_CHECK(!party.admit(&message, sizeof message, {}, admitted));
  key_of("the cluster's key").sign(message);
  BOOST_CHECK(party.admit(&message, sizeof message, {}, admitted));
  BOOST_CHECK_EQUAL(party.refused.get(), 1u);
}

BOOST_AUTO_TEST_CASE(with_an_unusable_key_nobody_is_asked_or_answered) {
  Port port;
  port.share();
  Party party(port.number, key_of("too short"));
  BOOST_CHECK_LT(party.answering_fd(), 0);
  BOOST_CHECK_LT(party.asking_fd(), 0);
  BOOST_CHECK(!party.take_over());
  BOOST_CHECK(!party.ask(loopback(), {}, question()));
  BOOST_CHECK(!party.ask(loopback(), {}, question(), 2));
  sockaddr_in6 to{};
  party.answer(to, {}, question());
  const DiscoveryMessage message = question();
  DiscoveryMessage admitted;
  BOOST_CHECK(!party.admit(&message, sizeof message, {}, admitted));
}

BOOST_AUTO_TEST_CASE(a_host_without_nodes_does_not_stop_the_asker) {
  Host host;
  host.first.stop_answering();
  host.second.stop_answering();
  DiscoveryMessage message;
  sockaddr_in6 from{};
  for (int i = 0; i < 3; ++i) {
    // Here the kernel may report that the previous question was refused.
    host.first.ask(loopback(), {}, question());
    BOOST_CHECK(!host.first.receive(host.first.asking_fd(), message, from));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(node_names)

BOOST_AUTO_TEST_CASE(names_of_this_version_are_found) {
  check_names("", {});
  check_names("Num       RefCount Protocol Flags    Type St Inode Path\n" + line(node_name("300")) +
                  line("/run/dbus/system_bus_socket") + line(node_name("7")) + line("@other") +
                  line(""),
              {7, 300});
}

BOOST_AUTO_TEST_CASE(a_name_that_occurs_twice_is_one_node) {
  check_names(line(node_name("9")) + line(node_name("8")) + line(node_name("9")), {8, 9});
}

BOOST_AUTO_TEST_CASE(names_of_other_versions_and_things_are_not_nodes) {
  const std::string later = std::to_string(kProtocolVersion + 1);
  check_names(line("@sidestep." + later + ".5"), {});
  check_names(line("@sidestep.1" + later + ".5"), {});
  check_names(line("@sidestep.5"), {});
  check_names(line(node_name("1000.5")), {});
  check_names(line(node_name("directory.1000.0")), {});
}

BOOST_AUTO_TEST_CASE(only_a_nid_is_a_nid) {
  check_names(line(node_name("1")) + line(node_name("65535")), {1, 65535});
  for (const char* nid :
       {"", "0", "65536", "99999999999999999999999", "x", "5x", "5 ", "5.6", ".5"})
    check_names(line(node_name(nid)), {});
}

BOOST_AUTO_TEST_CASE(a_name_counts_only_as_the_whole_path) {
  check_names(line("/tmp/" + node_name("5")), {});
  check_names(line("@x" + node_name("5")), {});
  check_names(line(node_name("5") + node_name("6")), {});
}

BOOST_AUTO_TEST_CASE(a_text_that_ends_anywhere_is_read_as_far_as_it_goes) {
  const std::string text = line(node_name("12")) + line(node_name("345"));
  for (size_t size = 0; size <= text.size(); ++size)
    BOOST_CHECK_LE(NodeNames::parse(text.substr(0, size)).size(), 2u);
  std::string last = text;
  last.pop_back();  // the last line lacks its newline
  check_names(last, {12, 345});
}

BOOST_AUTO_TEST_CASE(garbage_is_passed_over) {
  std::string garbage;
  for (int i = 0; i < 3 * 256; ++i) garbage += static_cast<char>(i * 7);
  check_names(garbage, {});
  check_names(garbage + "\n" + line(node_name("21")) + garbage, {21});
}

BOOST_AUTO_TEST_SUITE_END()

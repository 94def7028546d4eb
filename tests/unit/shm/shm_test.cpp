#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "engine/shm/shm_device.hpp"
#include "engine/wire/fragment.hpp"
#include "tests/support/shm_channel.hpp"

using namespace sidestep::engine;
using namespace sidestep::engine::shm;
using sidestep::tests::HostileChannel;
using sidestep::tests::kChannelOrb;
using sidestep::tests::ShmChannel;

namespace {

constexpr uint32_t kPolled = RecvBuffer::kPolled;

/// A memfd that a peer may offer.
struct Offered {
  Offered(size_t size, int seals) : fd(memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    BOOST_REQUIRE_EQUAL(ftruncate(fd, static_cast<off_t>(size)), 0);
    BOOST_REQUIRE_EQUAL(fcntl(fd, F_ADD_SEALS, seals), 0);
  }
  ~Offered() { close(fd); }
  const int fd;
};

std::vector<RecvCompletion> poll_all(ShmDevice& device) {
  std::vector<RecvCompletion> all;
  RecvCompletion completions[32];
  while (const size_t count = device.poll_recv(0, completions))
    all.insert(all.end(), completions, completions + count);
  return all;
}

uint64_t rings(const ShmDevice& device) {
  uint64_t value = 0;
  return read(device.event_fd(), &value, sizeof value) == sizeof value ? value : 0;
}

bool post(ShmEndpoint& endpoint, uint64_t position, uint32_t length) {
  const SendRequest request{position, length, make_immediate(7, 0)};
  return endpoint.post_send({&request, 1}) == 1;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shm)

BOOST_AUTO_TEST_CASE(a_region_is_seen_by_its_peer_and_cannot_be_written_by_it) {
  auto own = Region::create(kChannelOrb);
  BOOST_REQUIRE(own);
  own->orb()[5] = std::byte{42};
  // The ORB is mapped twice in a row, so a fragment that crosses its end is contiguous.
  own->orb().data()[kChannelOrb + 6] = std::byte{43};
  const auto peer = Region::map_peer(own->fd(), kChannelOrb);
  BOOST_REQUIRE(peer);
  BOOST_CHECK(peer->orb().data()[kChannelOrb + 5] == std::byte{42});
  BOOST_CHECK(peer->orb()[6] == std::byte{43});
  void* writable = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd(), 0);
  BOOST_CHECK(writable == MAP_FAILED);
  BOOST_CHECK_NE(ftruncate(own->fd(), 0), 0);
}

BOOST_AUTO_TEST_CASE(memory_that_its_owner_could_take_away_is_refused) {
  BOOST_CHECK(Region::map_peer(Offered(region_size(kChannelOrb), F_SEAL_SHRINK).fd, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(Offered(region_size(kChannelOrb), F_SEAL_GROW).fd, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(Offered(region_size(kChannelOrb), 0).fd, kChannelOrb));
}

BOOST_AUTO_TEST_CASE(memory_of_another_size_or_kind_is_refused) {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const size_t right = region_size(kChannelOrb);
  BOOST_CHECK(!Region::map_peer(Offered(right - 4096, seals).fd, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(Offered(right + 4096, seals).fd, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(Offered(0, seals).fd, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(Offered(right, seals).fd, 2 * kChannelOrb));
  BOOST_CHECK(!Region::map_peer(STDIN_FILENO, kChannelOrb));
  BOOST_CHECK(!Region::map_peer(-1, kChannelOrb));
}

BOOST_AUTO_TEST_CASE(bytes_arrive_where_the_sender_wrote_them) {
  ShmChannel channel;
  std::memcpy(channel.left->orb_memory().data(), "some bytes", 10);
  BOOST_CHECK(poll_all(*channel.right_device).empty());
  BOOST_REQUIRE(post(*channel.left, 0, 64));
  const auto completions = poll_all(*channel.right_device);
  BOOST_REQUIRE_EQUAL(completions.size(), 1u);
  BOOST_CHECK(completions[0].endpoint == channel.right.get());
  BOOST_CHECK_EQUAL(completions[0].length, 64u);
  BOOST_CHECK_EQUAL(immediate_nid(completions[0].immediate), 7);
  BOOST_CHECK(std::memcmp(completions[0].data, "some bytes", 10) == 0);
  BOOST_CHECK_EQUAL(channel.right->unreleased(), 64u);
  BOOST_CHECK_EQUAL(channel.left->completed(), 0u);
  completions[0].buffer->drop(kPolled);
  BOOST_CHECK_EQUAL(channel.right->unreleased(), 0u);
  BOOST_CHECK_EQUAL(channel.left->completed(), 64u);
  BOOST_CHECK(!channel.left->is_broken() && !channel.right->is_broken());
}

BOOST_AUTO_TEST_CASE(space_comes_back_in_order_however_it_is_released) {
  ShmChannel channel;
  for (uint64_t i = 0; i < 4; ++i) BOOST_REQUIRE(post(*channel.left, i * 32, 32));
  const auto completions = poll_all(*channel.right_device);
  BOOST_REQUIRE_EQUAL(completions.size(), 4u);
  completions[2].buffer->drop(kPolled);
  completions[1].buffer->drop(kPolled - 1);  // one reader still holds it
  BOOST_CHECK_EQUAL(channel.left->completed(), 0u);
  completions[0].buffer->drop(kPolled);
  BOOST_CHECK_EQUAL(channel.left->completed(), 32u);
  completions[1].buffer->drop(1);
  BOOST_CHECK_EQUAL(channel.left->completed(), 96u);
  completions[3].buffer->drop(kPolled);
  BOOST_CHECK_EQUAL(channel.left->completed(), 128u);
}

BOOST_AUTO_TEST_CASE(empty_work_requests_carry_their_immediate_and_hold_nothing) {
  ShmChannel channel;
  BOOST_REQUIRE(post(*channel.left, 0, 0));
  BOOST_REQUIRE(post(*channel.left, 0, 32));
  BOOST_REQUIRE(post(*channel.left, 32, 0));
  const auto completions = poll_all(*channel.right_device);
  BOOST_REQUIRE_EQUAL(completions.size(), 3u);
  BOOST_CHECK(completions[0].buffer == nullptr && completions[2].buffer == nullptr);
  BOOST_CHECK_EQUAL(immediate_nid(completions[2].immediate), 7);
  completions[1].buffer->drop(kPolled);
  BOOST_CHECK_EQUAL(channel.left->completed(), 32u);
  for (int lap = 0; lap < 3; ++lap) {
    for (size_t i = 0; i < kDescriptors; ++i) {
      BOOST_REQUIRE(post(*channel.left, 32, 0));
      if (i % 100 == 0) poll_all(*channel.right_device);
    }
    poll_all(*channel.right_device);
  }
}

BOOST_AUTO_TEST_CASE(a_full_descriptor_ring_keeps_enough_for_all_that_the_orb_has_left) {
  ShmChannel channel;
  size_t count = 0;
  while (post(*channel.left, 0, 0)) ++count;
  BOOST_CHECK_LT(count, kDescriptors);
  channel.left->use_reserve();
  const size_t room = channel.left->send_room();
  BOOST_CHECK_EQUAL(count + room, kDescriptors);
  const size_t least = kMaxWorkRequest - fragment_size(kMaxFragmentPayload);
  BOOST_CHECK_GE(room * least, channel.left->orb_memory().size());
}

BOOST_AUTO_TEST_CASE(a_full_descriptor_ring_takes_no_more_until_some_are_released) {
  ShmChannel channel;
  channel.left->use_reserve();
  for (uint64_t i = 0; i < kDescriptors; ++i) BOOST_REQUIRE(post(*channel.left, 0, 0));
  BOOST_CHECK(!post(*channel.left, 0, 0));
  RecvCompletion completions[10];
  BOOST_CHECK_EQUAL(channel.right_device->poll_recv(0, completions), 10u);
  for (int i = 0; i < 10; ++i) BOOST_REQUIRE(post(*channel.left, 0, 0));
  BOOST_CHECK(!post(*channel.left, 0, 0));
  const SendRequest chain[3] = {{0, 0, 1}, {0, 0, 2}, {0, 0, 3}};
  BOOST_CHECK_EQUAL(channel.right_device->poll_recv(0, {completions, 2}), 2u);
  BOOST_CHECK_EQUAL(channel.left->post_send(chain), 2u);
}

BOOST_AUTO_TEST_CASE(peers_that_are_idle_are_looked_at_now_and_then_and_where_it_is_asked_for) {
  std::deque<ShmChannel> channels(1);
  while (channels.size() < 20)
    channels.emplace_back(channels[0].left_device, channels[0].right_device);
  ShmDevice& device = *channels[0].right_device;
  RecvCompletion completions[32];
  const auto polls_until_found = [&](ShmEndpoint& from) {
    BOOST_REQUIRE(post(from, 0, 0));
    int polls = 1;
    while (device.poll_recv(0, completions) == 0 && polls < 1000) ++polls;
    return polls;
  };
  const auto grow_old = [&] {
    for (int i = 0; i < 10'000; ++i) device.poll_recv(0, completions);
  };
  BOOST_CHECK_EQUAL(polls_until_found(*channels[7].left), 1);
  grow_old();
  BOOST_CHECK(!device.lanes[0].found_all);
  BOOST_CHECK_LE(polls_until_found(*channels[7].left), 32);
  BOOST_CHECK_EQUAL(polls_until_found(*channels[7].left), 1);
  grow_old();
  for (ShmChannel& channel : channels) BOOST_REQUIRE(post(*channel.left, 0, 0));
  device.lanes[0].want_all = true;
  BOOST_CHECK_EQUAL(device.poll_recv(0, completions), channels.size());
  BOOST_CHECK(device.lanes[0].found_all);
  for (ShmChannel& channel : channels) BOOST_CHECK_EQUAL(polls_until_found(*channel.left), 1);
  // A channel that goes away leaves the others where they are.
  grow_old();
  polls_until_found(*channels[0].left);
  polls_until_found(*channels[19].left);
  channels.pop_back();
  BOOST_CHECK_EQUAL(polls_until_found(*channels[0].left), 1);
}

BOOST_AUTO_TEST_CASE(a_drain_finds_all_of_many_peers_in_order) {
  std::deque<ShmChannel> channels(1);
  while (channels.size() < 12)
    channels.emplace_back(channels[0].left_device, channels[0].right_device);
  ShmDevice& device = *channels[0].right_device;
  std::map<const Endpoint*, uint32_t> posted;
  std::map<const Endpoint*, uint32_t> found;
  std::mt19937 random(1);
  RecvCompletion completions[5];
  bool in_order = true;
  const auto poll = [&] {
    const size_t count = device.poll_recv(0, completions);
    for (size_t i = 0; i < count; ++i)
      in_order = in_order && completions[i].immediate == found[completions[i].endpoint]++;
  };
  for (int round = 0; round < 2000; ++round) {
    for (uint64_t i = random() % 20; i-- > 0;) {
      ShmChannel& channel = channels[random() % channels.size()];
      const SendRequest request{0, 0, posted[channel.right.get()]++};
      BOOST_REQUIRE_EQUAL(channel.left->post_send({&request, 1}), 1);
    }
    for (uint64_t i = random() % 3; i-- > 0;) poll();
    if (round % 100 == 0)
      for (int i = 0; i < 5000; ++i) poll();
    size_t rest = device.polls_to_drain(0);
    do {
      device.lanes[0].want_all = true;
      poll();
    } while (!device.lanes[0].found_all && rest-- > 0);
    BOOST_REQUIRE(device.lanes[0].found_all);
    BOOST_REQUIRE(found == posted);
  }
  BOOST_CHECK(in_order);
}

BOOST_AUTO_TEST_CASE(many_laps_lose_nothing_and_reuse_only_what_was_released) {
  ShmChannel channel;
  constexpr uint64_t kPieces = 100'000;
  std::thread sender([&] {
    uint64_t position = 0;
    for (uint64_t i = 0; i < kPieces; ++i) {
      const auto length = static_cast<uint32_t>(32 * (1 + i % 64));
      while (position + length - channel.left->completed() > kChannelOrb) std::this_thread::yield();
      std::memset(channel.left->orb_memory().data() + position % kChannelOrb,
                  static_cast<int>(i & 0xff), length);
      while (!post(*channel.left, position, length)) std::this_thread::yield();
      position += length;
    }
  });
  bool sound = true;
  uint64_t received = 0;
  std::deque<RecvCompletion> held;  // some are released late
  while (sound && received < kPieces) {
    RecvCompletion completions[8];
    const size_t count = channel.right_device->poll_recv(0, completions);
    if (count == 0) std::this_thread::yield();
    for (size_t i = 0; i < count; ++i, ++received) {
      const auto expected = static_cast<std::byte>(received & 0xff);
      sound = sound && completions[i].length == 32 * (1 + received % 64) &&
              std::all_of(completions[i].data, completions[i].data + completions[i].length,
                          [=](std::byte byte) { return byte == expected; });
      held.push_back(completions[i]);
    }
    while (held.size() > 5 || (count == 0 && !held.empty())) {
      held.front().buffer->drop(kPolled);
      held.pop_front();
    }
  }
  for (const RecvCompletion& completion : held) completion.buffer->drop(kPolled);
  BOOST_CHECK(sound);
  sender.join();
  BOOST_CHECK(!channel.left->is_broken() && !channel.right->is_broken());
}

BOOST_AUTO_TEST_CASE(the_doorbell_rings_once_for_each_nap_and_not_for_those_awake) {
  ShmChannel channel;
  BOOST_REQUIRE(post(*channel.left, 0, 32));
  channel.left->ring_if_parked();
  BOOST_CHECK_EQUAL(rings(*channel.right_device), 0u);
  for (int nap = 0; nap < 3; ++nap) {
    channel.right_device->arm();
    BOOST_CHECK(channel.right_device->is_armed());
    for (int i = 0; i < 5; ++i) channel.left->ring_if_parked();
    BOOST_CHECK_EQUAL(rings(*channel.right_device), 1u);
  }
  channel.right_device->arm();
  channel.right_device->disarm();
  channel.left->ring_if_parked();
  BOOST_CHECK_EQUAL(rings(*channel.right_device), 0u);
  BOOST_CHECK(!channel.right_device->is_armed());
}

BOOST_AUTO_TEST_CASE(readers_are_rung_for_once_for_each_nap_and_for_their_own_stream) {
  ShmChannel channel;
  constexpr uint32_t kStream = 7;
  constexpr uint32_t kOther = 8;
  const auto wake = [&](uint32_t stream) { channel.left->wake_readers({&stream, 1}); };
  wake(kStream);  // nobody has slept yet
  const auto first = channel.right->nap(kStream);
  BOOST_REQUIRE(first.word != nullptr);
  BOOST_CHECK_EQUAL(*first.word, first.value);
  wake(kOther);
  BOOST_CHECK_EQUAL(*first.word, first.value);
  BOOST_CHECK(!channel.right->has_rung(kStream, first.value));
  for (int i = 0; i < 5; ++i) wake(kStream);
  BOOST_CHECK_EQUAL(*first.word, first.value + 1);
  BOOST_CHECK(channel.right->has_rung(kStream, first.value));
  // Streams whose numbers are equal modulo kNaps share a word, which is rung for each sleeper.
  const auto second = channel.right->nap(kStream + kNaps);
  const auto third = channel.right->nap(kStream);
  BOOST_CHECK_EQUAL(second.word, first.word);
  wake(kStream);
  BOOST_CHECK_NE(*second.word, second.value);
  BOOST_CHECK_NE(*third.word, third.value);
  const auto fourth = channel.right->nap(kOther);
  channel.left->wake_all_readers();
  BOOST_CHECK_NE(*fourth.word, fourth.value);
}

BOOST_AUTO_TEST_CASE(a_sender_that_waits_for_space_is_woken_by_a_release) {
  ShmChannel channel;
  BOOST_REQUIRE(post(*channel.left, 0, 32));
  const auto completions = poll_all(*channel.right_device);
  BOOST_CHECK(!channel.right->peer_wants_release());
  channel.left->want_completions(true);
  BOOST_CHECK(channel.right->peer_wants_release());
  channel.left_device->arm();
  completions[0].buffer->drop(kPolled);
  BOOST_CHECK_EQUAL(rings(*channel.left_device), 1u);
}

BOOST_AUTO_TEST_CASE(a_descriptor_of_impossible_length_breaks_the_channel) {
  for (const uint32_t length : {kMaxWorkRequest + 32, 33U, 1U, 0xffffffffU, 0xffffffe0U}) {
    HostileChannel channel;
    channel.publish(0, length);
    BOOST_CHECK(poll_all(*channel.device).empty());
    BOOST_CHECK_MESSAGE(channel.endpoint->is_broken(), length);
    channel.publish(0, 32);
    BOOST_CHECK(poll_all(*channel.device).empty());  // nothing more is taken from this channel
  }
}

BOOST_AUTO_TEST_CASE(a_descriptor_out_of_its_turn_is_not_taken) {
  HostileChannel channel;
  channel.publish(1, 32);
  channel.peer.descriptors()[0].sequence.store(kDescriptors + 1);
  BOOST_CHECK(poll_all(*channel.device).empty());
}

BOOST_AUTO_TEST_CASE(a_peer_that_overwrites_unreleased_descriptors_breaks_the_channel) {
  HostileChannel channel;
  for (uint64_t i = 0; i < kDescriptors; ++i) channel.publish(i, 32);
  BOOST_CHECK_EQUAL(poll_all(*channel.device).size(), kDescriptors);
  channel.publish(kDescriptors, 32);
  BOOST_CHECK(poll_all(*channel.device).empty());
  BOOST_CHECK(channel.endpoint->is_broken());
}

BOOST_AUTO_TEST_CASE(a_peer_that_released_more_than_it_got_breaks_the_channel) {
  {
    HostileChannel channel;
    channel.peer.control().released_position.store(32);
    BOOST_CHECK_EQUAL(channel.endpoint->completed(), 0u);
    BOOST_CHECK(channel.endpoint->is_broken());
  }
  HostileChannel channel;
  channel.endpoint->use_reserve();
  for (uint64_t i = 0; i < kDescriptors; ++i) BOOST_REQUIRE(post(*channel.endpoint, 0, 0));
  channel.peer.control().released_count.store(kDescriptors + 1);
  BOOST_CHECK(!post(*channel.endpoint, 0, 0));
  BOOST_CHECK(channel.endpoint->is_broken());
}

BOOST_AUTO_TEST_CASE(a_confirmation_that_goes_backwards_breaks_the_channel) {
  HostileChannel channel;
  channel.endpoint->use_reserve();
  for (uint64_t i = 0; i < kDescriptors; ++i) BOOST_REQUIRE(post(*channel.endpoint, 0, 0));
  channel.peer.control().released_count.store(kDescriptors);
  for (uint64_t i = 0; i < kDescriptors; ++i) BOOST_REQUIRE(post(*channel.endpoint, 0, 0));
  channel.peer.control().released_count.store(kDescriptors - 1);
  BOOST_CHECK(!post(*channel.endpoint, 0, 0));
  BOOST_CHECK(channel.endpoint->is_broken());
}

BOOST_AUTO_TEST_SUITE_END()

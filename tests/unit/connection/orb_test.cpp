#include "engine/connection/orb.hpp"

#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "engine/shm/region.hpp"

using namespace sidestep::engine;

namespace {

constexpr size_t kSize = 64 * 1024;

/// A ring over memory that is mapped twice, as it is in a device.
struct Ring {
  shm::Region region = std::move(*shm::Region::create(kSize));
  Orb orb{region.orb()};

  /// Posts what is ready and confirms it at once. Returns how many bytes the fragments had.
  uint32_t drain(uint32_t limit = kMaxWorkRequest) {
    const Orb::Ready ready = orb.peek(orb.posted(), limit);
    orb.set_posted(ready.position + ready.length);
    orb.set_front(ready.position + ready.length);
    return ready.length;
  }
};

void write(Orb& orb, uint64_t position, uint32_t payload, uint32_t stream) {
  const FragmentHeader header{stream, payload, 0, static_cast<uint8_t>(FragmentType::data), {}};
  std::memcpy(orb.at(position), &header, sizeof header);
  std::memset(orb.at(position) + sizeof header, static_cast<int>(stream & 0xff), payload);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(orb)

BOOST_AUTO_TEST_CASE(nothing_is_ready_before_it_is_committed) {
  Ring ring;
  const uint64_t position = ring.orb.reserve(100, false);
  BOOST_REQUIRE_EQUAL(position, 0u);
  BOOST_CHECK_EQUAL(ring.orb.peek(0, kMaxWorkRequest).length, 0u);
  ring.orb.commit(position, 100);
  const Orb::Ready ready = ring.orb.peek(0, kMaxWorkRequest);
  BOOST_CHECK_EQUAL(ready.length, fragment_size(100));
  BOOST_CHECK_EQUAL(ready.fragments, 1u);
}

BOOST_AUTO_TEST_CASE(a_gap_holds_back_what_was_committed_behind_it) {
  Ring ring;
  const uint64_t first = ring.orb.reserve(10, false);
  const uint64_t second = ring.orb.reserve(20, false);
  const uint64_t third = ring.orb.reserve(30, false);
  ring.orb.commit(third, 30);
  ring.orb.commit(second, 20);
  BOOST_CHECK_EQUAL(ring.orb.peek(0, kMaxWorkRequest).length, 0u);
  ring.orb.commit(first, 10);
  const Orb::Ready ready = ring.orb.peek(0, kMaxWorkRequest);
  BOOST_CHECK_EQUAL(ready.fragments, 3u);
  BOOST_CHECK_EQUAL(ready.length, fragment_size(10) + fragment_size(20) + fragment_size(30));
}

BOOST_AUTO_TEST_CASE(a_piece_holds_whole_fragments_only) {
  Ring ring;
  for (int i = 0; i < 3; ++i) ring.orb.commit(ring.orb.reserve(1000, false), 1000);
  const auto one = static_cast<uint32_t>(fragment_size(1000));
  BOOST_CHECK_EQUAL(ring.orb.peek(0, 3 * one).fragments, 3u);
  BOOST_CHECK_EQUAL(ring.orb.peek(0, 3 * one - 1).length, 2 * one);
  BOOST_CHECK_EQUAL(ring.orb.peek(0, one - 1).length, 0u);
}

BOOST_AUTO_TEST_CASE(a_fragment_over_the_end_of_the_ring_is_contiguous) {
  Ring ring;
  const auto big = static_cast<uint32_t>(kMaxFragmentPayload);
  uint64_t position = 0;
  while ((position % kSize) + fragment_size(big) <= kSize) {
    position = ring.orb.reserve(big, false);
    BOOST_REQUIRE_NE(position, Orb::kNoSpace);
    write(ring.orb, position, big, 7);
    if ((position % kSize) + fragment_size(big) > kSize) break;
    ring.orb.commit(position, big);
    ring.drain();
  }
  // The fragment's end lies at the beginning of the memory.
  const size_t behind = position % kSize + sizeof(FragmentHeader) + big - kSize;
  BOOST_REQUIRE_LT(behind, big);
  BOOST_CHECK(std::to_integer<int>(ring.region.orb()[behind - 1]) == 7);
  ring.orb.commit(position, big);
  BOOST_CHECK_EQUAL(ring.drain(), fragment_size(big));
}

BOOST_AUTO_TEST_CASE(a_full_ring_refuses_until_the_device_confirms) {
  Ring ring;
  std::vector<uint64_t> positions;
  for (uint64_t at; (at = ring.orb.reserve(1000, false)) != Orb::kNoSpace;) positions.push_back(at);
  BOOST_CHECK_GT(positions.size(), 50u);
  BOOST_CHECK_LT(ring.orb.free_for_data(), 1000u);
  for (const uint64_t at : positions) ring.orb.commit(at, 1000);
  const Orb::Ready ready = ring.orb.peek(0, kMaxWorkRequest);
  ring.orb.set_posted(ready.length);
  BOOST_CHECK_EQUAL(ring.orb.reserve(1000, false), Orb::kNoSpace);  // posted, but not confirmed
  ring.orb.set_front(fragment_size(1000));
  BOOST_CHECK_NE(ring.orb.reserve(1000, false), Orb::kNoSpace);
  BOOST_CHECK_EQUAL(ring.orb.reserve(1000, false), Orb::kNoSpace);
}

BOOST_AUTO_TEST_CASE(data_cannot_lock_out_control_fragments) {
  Ring ring;
  while (ring.orb.reserve(1, false) != Orb::kNoSpace) {
  }
  size_t controls = 0;
  while (ring.orb.reserve(8, true) != Orb::kNoSpace) ++controls;
  BOOST_CHECK_EQUAL(controls, Orb::kControlReserve / fragment_size(8));
}

BOOST_AUTO_TEST_CASE(an_old_confirmation_does_not_move_the_front_back) {
  Ring ring;
  ring.orb.set_front(640);
  ring.orb.set_front(320);
  BOOST_CHECK_EQUAL(ring.orb.front(), 640u);
}

BOOST_AUTO_TEST_CASE(payload_is_never_mistaken_for_a_commit_of_a_later_lap) {
  Ring ring;
  std::mt19937 dice(1);
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t payload = 1 + static_cast<uint32_t>(dice() % 3000);
    const uint64_t position = ring.orb.reserve(payload, false);
    BOOST_REQUIRE_NE(position, Orb::kNoSpace);
    write(ring.orb, position, payload, static_cast<uint32_t>(i));
    BOOST_REQUIRE_EQUAL(ring.orb.peek(ring.orb.posted(), kMaxWorkRequest).length, 0u);
    ring.orb.commit(position, payload);
    BOOST_REQUIRE_EQUAL(ring.drain(), fragment_size(payload));
  }
}

BOOST_AUTO_TEST_CASE(what_many_threads_write_at_once_arrives_whole_and_in_each_threads_order) {
  Ring ring;
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 20'000;
  std::vector<std::thread> producers;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    producers.emplace_back([&ring, thread] {
      std::mt19937 dice(thread);
      for (uint32_t number = 0; number < kEach; ++number) {
        const uint32_t payload = 4 + static_cast<uint32_t>(dice() % 500);
        uint64_t position = 0;
        while ((position = ring.orb.reserve(payload, number % 16 == 0)) == Orb::kNoSpace)
          std::this_thread::yield();
        const FragmentHeader header{thread, payload, number, 1, {}};
        std::memcpy(ring.orb.at(position), &header, sizeof header);
        std::memset(ring.orb.at(position) + sizeof header,
                    static_cast<int>((thread + number) & 0xff), payload);
        ring.orb.commit(position, payload);
      }
    });
  }
  std::array<uint32_t, kThreads> next{};
  uint32_t total = 0;
  // This loop does without the framework's macros, which would take most of the run time.
  bool sound = true;
  while (sound && total < kThreads * kEach) {
    const Orb::Ready ready = ring.orb.peek(ring.orb.posted(), kMaxWorkRequest);
    if (ready.length == 0) std::this_thread::yield();
    uint32_t fragments = 0;
    for (uint64_t at = ready.position; sound && at != ready.position + ready.length;) {
      FragmentHeader header;
      std::memcpy(&header, ring.orb.at(at), sizeof header);
      sound = header.stream < kThreads && header.generation == next[header.stream];
      if (!sound) break;
      ++next[header.stream];
      const auto expected = static_cast<std::byte>((header.stream + header.generation) & 0xff);
      const std::byte* payload = ring.orb.at(at) + sizeof header;
      for (uint32_t i = 0; i < header.length; ++i) sound &= payload[i] == expected;
      at += fragment_size(header.length);
      ++fragments;
    }
    sound &= fragments == ready.fragments;
    total += fragments;
    ring.orb.set_posted(ready.position + ready.length);
    ring.orb.set_front(ready.position + ready.length);
  }
  BOOST_CHECK(sound);
  for (std::thread& producer : producers) producer.join();
  BOOST_CHECK_EQUAL(ring.orb.back(), ring.orb.posted());
}

BOOST_AUTO_TEST_SUITE_END()

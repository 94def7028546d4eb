#include "engine/connection/write_interest.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <memory>
#include <thread>
#include <vector>

using sidestep::engine::WriteInterest;

BOOST_AUTO_TEST_SUITE(write_interest)

BOOST_AUTO_TEST_CASE(peers_come_back_in_the_order_they_were_pushed) {
  WriteInterest ring;
  BOOST_CHECK(ring.empty());
  BOOST_CHECK(!ring.pop());
  for (uint32_t lap = 0; lap < 3 * WriteInterest::kCells; lap += 1000) {
    for (uint32_t i = 0; i < 1000; ++i) ring.push((lap + i) % WriteInterest::kCells);
    BOOST_REQUIRE(!ring.empty());
    for (uint32_t i = 0; i < 1000; ++i)
      BOOST_REQUIRE_EQUAL(ring.pop().value(), (lap + i) % WriteInterest::kCells);
    BOOST_REQUIRE(ring.empty());
  }
}

BOOST_AUTO_TEST_CASE(every_peer_at_once_fits) {
  WriteInterest ring;
  for (uint32_t peer = 0; peer < WriteInterest::kCells; ++peer) ring.push(peer);
  for (uint32_t peer = 0; peer < WriteInterest::kCells; ++peer)
    BOOST_REQUIRE_EQUAL(ring.pop().value(), peer);
  BOOST_CHECK(!ring.pop());
}

// Follows the rule of the ring as Connection::kick() and Posting::post_requested() do.
BOOST_AUTO_TEST_CASE(interest_is_never_lost_and_never_there_twice) {
  constexpr uint32_t kNids = 8;
  constexpr int kSignals = 50'000;
  WriteInterest ring;
  struct Nid {
    std::atomic<uint32_t> interest{0};
    std::atomic<int> in_ring{0};
    std::atomic<uint64_t> work{0};
    std::atomic<uint64_t> done{0};
  };
  std::vector<Nid> nids(kNids);
  std::atomic<int> producing{2};
  std::atomic<bool> twice{false};
  const auto produce = [&](uint32_t salt) {
    for (uint32_t i = 0; i < kSignals; ++i) {
      Nid& nid = nids[(i * 5 + salt) % kNids];
      nid.work.fetch_add(1, std::memory_order_relaxed);
      if (nid.interest.fetch_add(1, std::memory_order_seq_cst) == 0) {
        if (nid.in_ring.fetch_add(1) != 0) twice = true;
        ring.push(static_cast<uint16_t>((i * 5 + salt) % kNids));
      }
    }
    producing.fetch_sub(1);
  };
  const auto consume = [&] {
    for (;;) {
      const bool last = producing.load() == 0;
      const auto number = ring.pop();
      if (!number) {
        if (last) return;
        std::this_thread::yield();
        continue;
      }
      Nid& nid = nids[*number];
      nid.in_ring.fetch_sub(1);
      nid.interest.exchange(0, std::memory_order_seq_cst);
      const uint64_t work = nid.work.load(std::memory_order_relaxed);
      uint64_t done = nid.done.load(std::memory_order_relaxed);
      while (done < work && !nid.done.compare_exchange_weak(done, work)) {
      }
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(produce, 0);
  threads.emplace_back(produce, 3);
  threads.emplace_back(consume);
  threads.emplace_back(consume);
  for (std::thread& thread : threads) thread.join();
  BOOST_CHECK(!twice);
  BOOST_CHECK(ring.empty());
  for (const Nid& nid : nids) BOOST_CHECK_EQUAL(nid.done.load(), nid.work.load());
}

BOOST_AUTO_TEST_SUITE_END()

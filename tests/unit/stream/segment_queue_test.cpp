#include "engine/stream/segment_queue.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/support/fake_endpoint.hpp"

using namespace sidestep::engine;
using sidestep::tests::FakeEndpoint;

namespace {

Segment mark(SegmentKind kind, uint64_t value) {
  return {nullptr, nullptr, nullptr, value, 0, kind};
}

/// A receive buffer and its bytes.
struct Buffer {
  explicit Buffer(FakeEndpoint& endpoint, size_t size = 64) : bytes(size) {
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7);
    buffer.endpoint = &endpoint;
    buffer.length = static_cast<uint32_t>(size);
  }
  Segment segment(uint32_t from, uint32_t length) {
    buffer.references.fetch_add(1);
    return {bytes.data() + from, &buffer, nullptr, 0, length, SegmentKind::data};
  }
  RecvBuffer buffer;
  std::vector<std::byte> bytes;
};

/// A thread that pushes the marks 0 to `count` - 1, at most 500 ahead of the consumer. The
/// destructor waits for the thread, which then no longer waits for anybody.
class Producer {
 public:
  Producer(SegmentQueue& queue, uint64_t count)
      : count_(count), thread_([this, &queue] {
          for (uint64_t i = 0; i < count_; ++i) {
            while (i - popped_.load(std::memory_order_relaxed) > 500) std::this_thread::yield();
            queue.push(mark(SegmentKind::fin, i));
          }
        }) {}
  ~Producer() {
    popped(count_);
    thread_.join();
  }
  void popped(uint64_t count) { popped_.store(count, std::memory_order_relaxed); }

 private:
  const uint64_t count_;
  std::atomic<uint64_t> popped_{0};
  std::thread thread_;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(segment_queue)

BOOST_AUTO_TEST_CASE(an_empty_queue_has_no_front) {
  SegmentQueue queue;
  BOOST_CHECK(queue.front() == nullptr);
  queue.clear();
  BOOST_CHECK_EQUAL(queue.spill(), 0u);
}

BOOST_AUTO_TEST_CASE(marks_keep_their_place_between_data) {
  FakeEndpoint endpoint;
  Buffer buffer(endpoint);
  SegmentQueue queue;
  queue.push(mark(SegmentKind::switch_up, 17));
  queue.push(buffer.segment(0, 8));
  queue.push(mark(SegmentKind::switch_down, 0));
  queue.push(mark(SegmentKind::fin, 0));
  BOOST_CHECK(queue.front()->kind == SegmentKind::switch_up);
  BOOST_CHECK_EQUAL(queue.front()->value, 17u);
  queue.pop();
  BOOST_CHECK(queue.front()->kind == SegmentKind::data);
  BOOST_CHECK_EQUAL(queue.front()->length, 8u);
  queue.pop();
  BOOST_CHECK(queue.front()->kind == SegmentKind::switch_down);
  queue.pop();
  BOOST_CHECK(queue.front()->kind == SegmentKind::fin);
  queue.pop();
  BOOST_CHECK(queue.front() == nullptr);
}

BOOST_AUTO_TEST_CASE(order_survives_the_reuse_of_chunks) {
  SegmentQueue queue;
  uint64_t pushed = 0;
  uint64_t popped = 0;
  for (int round = 0; round < 1000; ++round) {
    for (int i = 0; i < 1 + round % 200; ++i) queue.push(mark(SegmentKind::fin, pushed++));
    const int keep = round % 7;
    while (pushed - popped > static_cast<uint64_t>(keep)) {
      BOOST_REQUIRE(queue.front() != nullptr);
      BOOST_REQUIRE_EQUAL(queue.front()->value, popped++);
      queue.pop();
    }
  }
}

BOOST_AUTO_TEST_CASE(clear_gives_every_buffer_back_once) {
  FakeEndpoint endpoint;
  std::vector<std::unique_ptr<Buffer>> buffers;
  SegmentQueue queue;
  for (int i = 0; i < 200; ++i) {
    buffers.push_back(std::make_unique<Buffer>(endpoint));
    queue.push(buffers.back()->segment(0, 32));
    queue.push(buffers.back()->segment(32, 32));
  }
  queue.clear();
  BOOST_CHECK_EQUAL(endpoint.released, 200u);
  BOOST_CHECK(queue.front() == nullptr);
}

BOOST_AUTO_TEST_CASE(the_end_of_a_queue_gives_its_buffers_back) {
  FakeEndpoint endpoint;
  Buffer buffer(endpoint);
  {
    SegmentQueue queue;
    queue.push(buffer.segment(0, 32));
  }
  BOOST_CHECK_EQUAL(endpoint.released, 1u);
}

BOOST_AUTO_TEST_CASE(spilled_bytes_stay_and_their_buffers_go) {
  FakeEndpoint endpoint;
  Buffer buffer(endpoint);
  SegmentQueue queue;
  queue.push(mark(SegmentKind::switch_up, 0));
  queue.push(buffer.segment(3, 10));
  queue.push(mark(SegmentKind::switch_down, 0));
  queue.push(buffer.segment(20, 30));
  // Nobody has looked at the queue yet, as when a reader does not read.
  BOOST_CHECK_EQUAL(queue.spill(), 40u);
  BOOST_CHECK_EQUAL(endpoint.released, 1u);
  BOOST_CHECK_EQUAL(queue.spill(), 0u);  // once is enough
  const std::vector<std::byte> original = buffer.bytes;
  std::fill(buffer.bytes.begin(), buffer.bytes.end(), std::byte{0});  // the peer writes there again
  BOOST_REQUIRE(queue.front() != nullptr);
  queue.pop();
  BOOST_CHECK(std::memcmp(queue.front()->data, original.data() + 3, 10) == 0);
  queue.pop();
  queue.pop();
  BOOST_CHECK(std::memcmp(queue.front()->data, original.data() + 20, 30) == 0);
  queue.pop();
  BOOST_CHECK(queue.front() == nullptr);
}

BOOST_AUTO_TEST_CASE(a_consumer_beside_the_producer_sees_everything_in_order) {
  SegmentQueue queue;
  constexpr uint64_t kCount = 300'000;
  Producer producer(queue, kCount);
  bool sound = true;
  for (uint64_t expected = 0; sound && expected < kCount;) {
    if (const Segment* segment = queue.front()) {
      sound = segment->value == expected;
      queue.pop();
      producer.popped(++expected);
    } else {
      std::this_thread::yield();
    }
  }
  BOOST_CHECK(sound);
}

BOOST_AUTO_TEST_CASE(a_visitor_beside_the_producer_skips_nothing) {
  SegmentQueue queue;
  constexpr uint64_t kCount = 100'000;
  Producer producer(queue, kCount);
  bool sound = true;
  for (uint64_t next = 0; sound && next < kCount;) {
    if (queue.front() == nullptr) continue;
    uint64_t expected = next;
    queue.for_each([&](const Segment& segment) {
      sound = sound && segment.value == expected++;
      return sound;
    });
    queue.pop();
    producer.popped(++next);
  }
  BOOST_CHECK(sound);
}

BOOST_AUTO_TEST_SUITE_END()

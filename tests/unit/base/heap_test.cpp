#include "engine/base/heap.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

using namespace sidestep::engine;

namespace {

struct Block {
  unsigned char* data;
  size_t size;
  unsigned char mark;
  bool is_whole() const {
    for (size_t i = 0; i < size; ++i)
      if (data[i] != mark) return false;
    return true;
  }
};

Block allocate(size_t size, size_t alignment, unsigned char mark) {
  const Block block{static_cast<unsigned char*>(heap_allocate(size, alignment)), size, mark};
  BOOST_REQUIRE(block.data != nullptr);
  BOOST_REQUIRE_EQUAL(reinterpret_cast<uintptr_t>(block.data) % alignment, 0U);
  std::memset(block.data, mark, size);
  return block;
}

/// Allocates and frees blocks of all sizes. True if each keeps what was written into it.
bool churn(unsigned seed, int steps) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  bool whole = true;
  for (int i = 0; i < steps; ++i) {
    if (blocks.size() < 200 && random() % 2 == 0) {
      const size_t size = (size_t{1} << random() % 19) - random() % 2;
      const size_t alignment = size_t{16} << random() % 4;
      auto* data = static_cast<unsigned char*>(heap_allocate(size, alignment));
      blocks.push_back({data, size, static_cast<unsigned char>(random())});
      if (data == nullptr || reinterpret_cast<uintptr_t>(data) % alignment != 0) return false;
      std::memset(data, blocks.back().mark, size);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      whole = whole && blocks.back().is_whole();
      heap_release(blocks.back().data);
      blocks.pop_back();
    }
  }
  for (const Block& block : blocks) {
    whole = whole && block.is_whole();
    heap_release(block.data);
  }
  return whole;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(heap)

BOOST_AUTO_TEST_CASE(blocks_of_every_size_are_apart_and_aligned) {
  std::vector<Block> blocks;
  for (size_t size = 0; size <= 4200; ++size)
    for (const size_t alignment : {1U, 16U, 64U})
      blocks.push_back(allocate(size, alignment, static_cast<unsigned char>(size * 3 + alignment)));
  for (const size_t size :
       {kLargestShared - 1, kLargestShared, kLargestShared + 1, size_t{5} << 20})
    for (const size_t alignment : {16U, 64U, 128U, 4096U, 65536U})
      blocks.push_back(allocate(size, alignment, static_cast<unsigned char>(alignment / 16)));
  for (const Block& block : blocks) {
    BOOST_REQUIRE(block.is_whole());
    heap_release(block.data);
  }
}

BOOST_AUTO_TEST_CASE(a_block_is_used_again) {
  void* const first = heap_allocate(1000, 16);
  heap_release(first);
  BOOST_TEST(heap_allocate(1001, 16) == first);
  heap_release(first);
  heap_release(nullptr);
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_there) {
  BOOST_TEST(heap_allocate(size_t{1} << 47, 16) == nullptr);
  BOOST_TEST(heap_allocate(~size_t{0}, 16) == nullptr);
  BOOST_TEST(heap_allocate(~size_t{0}, 64) == nullptr);
  BOOST_TEST(heap_allocate(16, 1 << 20) == nullptr);
}

BOOST_AUTO_TEST_CASE(blocks_are_released_by_other_threads) {
  std::vector<Block> blocks;
  for (unsigned i = 0; i < 1000; ++i)
    blocks.push_back(allocate(i * 7, 16, static_cast<unsigned char>(i)));
  std::thread([&] {
    for (const Block& block : blocks) heap_release(block.data);
  }).join();
  BOOST_TEST(churn(1, 2000));
}

BOOST_AUTO_TEST_CASE(threads_do_not_disturb_each_other) {
  std::vector<char> whole(12);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < whole.size(); ++i)
    threads.emplace_back([&whole, i] { whole[i] = churn(i, 5000) ? 1 : 0; });
  for (std::thread& thread : threads) thread.join();
  for (const char w : whole) BOOST_TEST(w == 1);
}

BOOST_AUTO_TEST_SUITE_END()

#pragma once
/// How many threads of a node poll in a loop (wait.hpp), and how many of those look at this moment:
/// one that yields may be away for a while, and then nobody may count on it.
///
/// Both numbers are in one word, since each wait changes both of them, and that word is written by
/// all threads that wait.
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

class PollingThreads {
 public:
  // seq_cst, all that changes the word and looking(): a thread that is about to sleep counts itself
  // and then asks whether anybody looks; one that stops looking does the opposite.
  void enter() noexcept { word_.fetch_add(kOne | kOneLooks, std::memory_order_seq_cst); }
  void resume() noexcept { word_.fetch_add(kOneLooks, std::memory_order_seq_cst); }
  /// True: it was the last one that looked.
  bool leave() noexcept { return take(kOne | kOneLooks); }
  bool pause() noexcept { return take(kOneLooks); }

  uint32_t looking() const noexcept {
    return static_cast<uint32_t>(word_.load(std::memory_order_seq_cst) >> 32);
  }
  /// Those that have yielded as well. A hint.
  uint32_t all() const noexcept {
    return static_cast<uint32_t>(word_.load(std::memory_order_relaxed));
  }

 private:
  static constexpr uint64_t kOne = 1;
  static constexpr uint64_t kOneLooks = uint64_t{1} << 32;
  bool take(uint64_t amount) noexcept {
    return word_.fetch_sub(amount, std::memory_order_seq_cst) >> 32 == 1;
  }

  std::atomic<uint64_t> word_{0};
};

}  // namespace sidestep::engine

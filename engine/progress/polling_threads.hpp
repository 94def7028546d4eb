#pragma once
/// Counts the threads of a node that poll in a loop (wait.hpp), and those of them that look at this
/// moment. A thread that yields may be away for a while, and nobody may count on it then.
///
/// Both numbers are in one word, since each wait changes both of them and all waiting threads write
/// that word.
#include <atomic>
#include <cstdint>

namespace sidestep::engine {

class PollingThreads {
 public:
  // Everything that changes the word is seq_cst, and so is looking(): a thread that is about to
  // sleep counts itself and then asks whether anybody looks; one that stops looking does the
  // opposite.
  void enter() noexcept { word_.fetch_add(kOne | kOneLooks, std::memory_order_seq_cst); }
  void resume() noexcept { word_.fetch_add(kOneLooks, std::memory_order_seq_cst); }
  /// True if the caller was the last thread that looked.
  bool leave() noexcept { return take(kOne | kOneLooks); }
  bool pause() noexcept { return take(kOneLooks); }

  uint32_t looking() const noexcept {
    return static_cast<uint32_t>(word_.load(std::memory_order_seq_cst) >> 32);
  }
  /// The number of threads that poll, including those that have yielded. A hint.
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

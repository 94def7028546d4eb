#include "engine/base/wakeable.hpp"

namespace sidestep::engine {

constinit std::atomic<bool> Wakeable::some_left{false};

void Wakeable::wake() noexcept {
  if (word_.exchange(kAwake, std::memory_order_seq_cst) == kAwake) return;
  WakeBatch* batch = WakeBatch::current_;
  if (batch != nullptr && batch->count_ < WakeBatch::kRoom) {
    batch->sleepers_[batch->count_++] = this;
  } else {
    wake_now();
  }
}

void Wakeable::leave_to_peer() noexcept {
  if (left_.load(std::memory_order_relaxed) != Left::no) return;
  left_.store(Left::yes, std::memory_order_relaxed);
  if (!some_left.load(std::memory_order_relaxed)) some_left.store(true, std::memory_order_relaxed);
}

constinit thread_local WakeBatch* WakeBatch::current_ = nullptr;

void WakeBatch::wake_all() noexcept {
  for (size_t i = 0; i < count_; ++i) sleepers_[i]->wake_now();
}

}  // namespace sidestep::engine

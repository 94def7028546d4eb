#pragma once
#include <mutex>

namespace sidestep::engine {

/// Holds the lock of one direction of a stream: of a Sender or a Receiver. At the end of the scope
/// the lock is released, and what others have deferred is done, as their unlock() says.
template <typename Side>
class SideGuard {
 public:
  [[gnu::always_inline]] explicit SideGuard(Side& side) noexcept : side_(side) {
    side_.mutex().lock();
  }
  /// For a caller that has taken the lock.
  SideGuard(Side& side, std::adopt_lock_t) noexcept : side_(side) {}
  [[gnu::always_inline]] ~SideGuard() { side_.unlock(); }
  SideGuard(const SideGuard&) = delete;

 private:
  Side& side_;
};

}  // namespace sidestep::engine

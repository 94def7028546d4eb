#pragma once
/// The error of a stream that is lost. As in the kernel it is told once, although the anchor and
/// the engine may both have an error. Any thread.
#include <atomic>

namespace sidestep::engine {

class StreamErrors {
 public:
  /// The errno that the next call has to report, as SO_ERROR does; 0 if there is none.
  int pending() const noexcept { return error_.load(std::memory_order_relaxed); }
  int take() noexcept { return error_.exchange(0, std::memory_order_seq_cst); }
  /// Called when the program has been told of an error, whichever it was.
  void note_told() noexcept {
    told_.store(true, std::memory_order_seq_cst);  // pairs with set()
    take();
  }
  bool was_told() const noexcept { return told_.load(std::memory_order_relaxed); }
  /// seq_cst pairs with note_told(): whichever of the two comes last makes sure that the error is
  /// not told again.
  void set(int error) noexcept {
    error_.store(error, std::memory_order_seq_cst);
    if (told_.load(std::memory_order_seq_cst)) take();
  }

 private:
  std::atomic<int> error_{0};
  std::atomic<bool> told_{false};
};

}  // namespace sidestep::engine

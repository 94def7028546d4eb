#pragma once
/// Whether a stream that the program uses may leave the kernel: it is cleared when the program has
/// waited for it where the shim sees that, or has no means of waiting elsewhere. Until then, the
/// uses are noted. Any thread; no lock.
#include <atomic>
#include <cstdint>
#include <optional>

namespace sidestep::engine {

class Stream;

class Clearance {
 public:
  explicit Clearance(Stream& stream) noexcept : stream_(stream) {}
  Clearance(const Clearance&) = delete;

  /// Called when the program has waited for the stream, or registered it, through the shim.
  void note_waiting() noexcept {
    if (seen_waiting_.load(std::memory_order_relaxed)) return;
    // Either admits() sees this, or give() sees what is wanted.
    seen_waiting_.store(true, std::memory_order_seq_cst);
    give();
  }
  /// Clears the stream, and does what the program's use of it has asked for in the meantime.
  void give() noexcept;
  /// True if the stream may have moved because the program had nothing else to wait with.
  bool is_presumed() const noexcept {
    return cleared_.load(std::memory_order_seq_cst) &&
           !seen_waiting_.load(std::memory_order_relaxed);
  }
  /// True if the stream has been used, but not (yet) cleared.
  bool is_awaited() const noexcept {
    return wanted_.load(std::memory_order_relaxed) != 0 &&
           !cleared_.load(std::memory_order_relaxed);
  }
  /// A use of the stream; the values are bits.
  enum class Use : uint32_t { reading = 1, writing = 2 };
  /// True if this use may have its effect now. Otherwise give() repeats it.
  bool admits(Use use) noexcept;
  /// Called when the stream has been bound.
  void note_bound() noexcept {
    if (wanted_.load(std::memory_order_seq_cst) != 0 && !cleared_.load(std::memory_order_seq_cst))
      ask();
  }

  /// Set by the shim, once. Tells whether the program may wait in ways that the shim does not see;
  /// returns nothing if the shim can't tell now. The call is slow; the manager makes it. Null if
  /// there is no such program.
  static std::atomic<std::optional<bool> (*)() noexcept> may_wait_unseen;
  /// Set by the shim, for good: the program does wait that way. seq_cst: either admits() sees it,
  /// or the thread that set it finds a stream that is_presumed().
  static std::atomic<bool> waits_unseen;

 private:
  bool is_given() const noexcept;
  void ask() noexcept;

  Stream& stream_;
  std::atomic<bool> seen_waiting_{false};
  std::atomic<bool> cleared_{false};
  std::atomic<bool> asked_{false};
  std::atomic<uint32_t> wanted_{0};  // uses that wait for give()
};

}  // namespace sidestep::engine

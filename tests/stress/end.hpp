#pragma once
/// One end of a self-checking stream: sends a pattern, and compares every byte that arrives with
/// the pattern of the other end at that position.
#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "preload/socket.hpp"

namespace sidestep::tests {

/// Bytes that depend on the direction and the position, so that a lost, doubled or misplaced byte
/// shows where it happened.
class Pattern {
 public:
  explicit Pattern(uint64_t seed);
  /// Returns the bytes from `position` on, of which at most kLongest may be read.
  const uint8_t* at(uint64_t position) const noexcept { return bytes_.data() + position % kPeriod; }
  /// Returns where in the pattern these bytes occur, or -1 if nowhere. Helps to understand a
  /// failure.
  int64_t find(const uint8_t* bytes, size_t size) const noexcept;
  static constexpr size_t kPeriod =
      1'000'003;  // a prime: no multiple of anything the engine counts in
  static constexpr size_t kLongest = 256 * 1024;

 private:
  std::vector<uint8_t> bytes_;  // kPeriod bytes, then the first kLongest of them once more
};

enum class Plan {
  flood,      ///< both ends send as fast as they can
  ping_pong,  ///< the ends send pieces of random size in turn; nothing else wakes anybody up
};

/// Counts everything that moves, for the watchdog.
extern std::atomic<uint64_t> g_progress;
/// Makes the ends stop sending at the next point that their plan allows.
extern std::atomic<bool> g_stop;

class End {
 public:
  enum class Outcome {
    moved,    ///< bytes went through
    blocked,  ///< EAGAIN
    waits,    ///< this side has nothing to do now (ping-pong: it is the other end's turn)
    over,     ///< the direction has ended
  };

  End(int fd, preload::Socket& socket, Plan plan, bool begins, uint64_t seed, size_t largest);

  void meet(End& other) noexcept { other_ = &other; }
  int fd() const noexcept { return fd_; }
  preload::Socket& socket() noexcept { return socket_; }
  Plan plan() const noexcept { return plan_; }

  /// Makes one call that sends, or the half close that ends the direction. With `may_block` the
  /// call blocks unless the dice choose MSG_DONTWAIT.
  Outcome send(bool may_block);
  /// Makes one call that receives, with random flags.
  Outcome receive(bool may_block);
  bool wants_to_send() const noexcept;
  bool is_over() const noexcept { return send_over_ && receive_over_; }

  uint64_t bytes() const noexcept { return received_.load(std::memory_order_relaxed); }
  /// Returns everything that can be seen from outside, for the watchdog's dump.
  std::string describe() const;

 private:
  /// Returns the size of the n-th piece of a ping-pong; both ends know it.
  uint64_t piece(uint64_t number) const noexcept;
  size_t random_size(std::mt19937_64& dice) const;
  void fail(const char* what, uint64_t position) const;

  const int fd_;
  preload::Socket& socket_;
  const Plan plan_;
  const bool begins_;
  const size_t largest_;
  const Pattern pattern_;
  const uint64_t seed_;
  End* other_ = nullptr;

  // The sending side; one thread at a time.
  std::mt19937_64 send_dice_;
  std::atomic<uint64_t> sent_{0};
  std::atomic<uint64_t> announced_{~uint64_t{0}};  // all bytes sent; set at the half close
  std::atomic<bool> send_over_{false};
  uint64_t pieces_sent_ = 0;
  uint64_t piece_end_ = 0;  // ping-pong: where the piece ends that may be sent now

  // The receiving side.
  std::mt19937_64 receive_dice_;
  std::vector<uint8_t> buffer_;
  std::atomic<uint64_t> received_{0};
  std::atomic<bool> receive_over_{false};
  std::atomic<uint64_t> pieces_received_{0};
  uint64_t arriving_end_ = 0;
};

}  // namespace sidestep::tests

#pragma once
/// One stream in a measurement: sends messages that can be told apart, and checks those that
/// arrive.
///
/// A message is `size` bytes, sent by one call; its first bytes (up to eight) are derived from its
/// number. One thread serves a lane; any thread may read the counters.
#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/base/counters.hpp"
#include "engine/node/node.hpp"
#include "engine/progress/waiter.hpp"
#include "tests/bench/histogram.hpp"
#include "tests/bench/mesh.hpp"

namespace sidestep::bench {

class Lane {
 public:
  enum class Role {
    receive,  ///< sends nothing
    stream,   ///< sends as fast as it can
    ping,     ///< sends the next message when the last one was answered
    pong,     ///< answers every message
  };

  Lane(const Joint& joint, Role role, size_t size, engine::EventSleeper& sleeper);

  const Joint& joint() const noexcept { return joint_; }
  engine::Stream& stream() noexcept { return *joint_.stream; }

  /// Sends for a while what it may and can. Returns true if a byte was sent. Throws Failure.
  bool send(bool stopping);
  /// Reads for a while what has arrived. Returns true if a byte was read. Throws Failure.
  bool receive(std::span<std::byte> buffer, bool measuring);

  /// True if no message is half sent.
  bool at_boundary() const noexcept { return offset_ == 0; }
  /// True if an answer is due.
  bool owes() const noexcept { return role_ == Role::pong && sent.get() < received.get(); }
  /// True if a message waits for credit or for room in the ring.
  bool is_blocked() const noexcept { return blocked_; }
  /// True if something has changed since send() and receive() gave up.
  bool may_go_on() noexcept;
  /// Called before a wait: asks to be told when the ring has room.
  void ask_for_room() noexcept;
  void watch() noexcept { stream().watches().add(waiter_); }
  void unwatch() noexcept { stream().watches().remove(waiter_); }

  engine::Counter sent;  ///< complete messages
  engine::Counter received;
  engine::Counter received_bytes;
  Histogram round_trips;

 private:
  bool may_start(bool stopping) const noexcept;
  void check(const std::byte* data, size_t length, bool measuring);
  void message_arrived(bool measuring);
  [[noreturn]] void fail(const char* what) const;

  const Joint joint_;
  const Role role_;
  const size_t size_;
  engine::Waiter waiter_;
  std::vector<std::byte> message_;
  size_t offset_ = 0;  // bytes already sent of the current message
  bool blocked_ = false;
  uint32_t tx_seen_ = 0;
  uint32_t rx_seen_ = 0;
  size_t position_ = 0;  // bytes already received of the current message
  uint64_t sent_at_ = 0;
};

}  // namespace sidestep::bench

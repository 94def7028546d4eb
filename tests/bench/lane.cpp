#include "tests/bench/lane.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/connection/connection.hpp"
#include "tests/bench/failure.hpp"

namespace sidestep::bench {
namespace {

using engine::Carrier;
using engine::RxHead;

// A turn is short, so that a thread with many lanes serves them evenly.
constexpr unsigned kSendsPerTurn = 32;
constexpr size_t kBytesPerTurn = 64 * 1024;

/// Returns the first bytes of message `number`. No byte of the multiplier is 0x00 or 0xff, so
/// neighbors differ in every byte.
uint64_t stamp(uint64_t number) noexcept {
  return (number + 1) * 0x9e3779b97f4a7c15U;
}

}  // namespace

Lane::Lane(const Joint& joint, Role role, size_t size, engine::EventSleeper& sleeper)
    : joint_(joint), role_(role), size_(size), waiter_(sleeper) {
  if (role != Role::receive) message_.resize(size, std::byte{0x5a});
}

void Lane::fail(const char* what) const {
  throw Failure(fmt::format("stream {} to node {}: {} (message {} of {} bytes)", joint_.number,
                            joint_.peer, what, received.get(), size_));
}

// ---- sending

bool Lane::may_start(bool stopping) const noexcept {
  switch (role_) {
    case Role::receive:
      return false;
    case Role::stream:
      return !stopping;
    case Role::ping:
      return !stopping && sent.get() == received.get();
    case Role::pong:
      return sent.get() < received.get();
  }
  return false;
}

bool Lane::send(bool stopping) {
  bool any = false;
  blocked_ = false;
  size_t bytes = 0;
  for (unsigned i = 0; i < kSendsPerTurn && bytes < kBytesPerTurn; ++i) {
    if (offset_ == 0) {
      if (!may_start(stopping)) break;
      const uint64_t mark = stamp(sent.get());
      std::memcpy(message_.data(), &mark, std::min(sizeof mark, size_));
      if (role_ == Role::ping) sent_at_ = engine::now_ns();
    }
    const iovec vector{message_.data(), size_};
    tx_seen_ = stream().sender().sequence();
    stream().sender().mutex().lock();
    const bool on_engine = stream().sender().carrier() == Carrier::engine && !stream().is_aborted();
    const size_t taken =
        on_engine ? stream().sender().send_locked(&vector, 1, offset_, size_ - offset_) : 0;
    stream().sender().unlock();
    if (!on_engine) fail("the engine does not carry it any more");
    any = any || taken != 0;
    bytes += taken;
    offset_ += taken;
    if (offset_ != size_) {
      blocked_ = true;
      break;
    }
    offset_ = 0;
    sent.add_exclusive();
  }
  return any;
}

// ---- receiving

bool Lane::receive(std::span<std::byte> buffer, bool measuring) {
  rx_seen_ = stream().receiver().sequence();
  size_t filled = 0;
  RxHead head{};
  stream().receiver().mutex().lock();
  while (filled < buffer.size()) {
    head = stream().receiver().head_locked();
    if (head.kind != RxHead::Kind::data) break;
    const size_t part = std::min<size_t>(buffer.size() - filled, head.limit);
    std::memcpy(buffer.data() + filled, head.data, part);
    stream().receiver().consume_locked(part);
    filled += part;
  }
  stream().receiver().unlock();
  if (filled != 0) {
    received_bytes.add_exclusive(filled);
    check(buffer.data(), filled, measuring);
    return true;
  }
  switch (head.kind) {
    case RxHead::Kind::kernel:
      fail("the engine does not carry it any more");
    case RxHead::Kind::end:
      fail("it has ended");
    case RxHead::Kind::error:
      fail(strerror(head.error));
    case RxHead::Kind::data:
    case RxHead::Kind::empty:
      break;
  }
  return false;
}

void Lane::check(const std::byte* data, size_t length, bool measuring) {
  while (length != 0) {
    const uint64_t expected = stamp(received.get());
    const size_t stamped = std::min(sizeof expected, size_);
    const size_t part = std::min(size_ - position_, length);
    if (position_ < stamped &&
        std::memcmp(data, reinterpret_cast<const std::byte*>(&expected) + position_,
                    std::min(stamped - position_, part)) != 0)
      fail("wrong bytes have arrived");
    position_ += part;
    data += part;
    length -= part;
    if (position_ == size_) {
      position_ = 0;
      message_arrived(measuring);
    }
  }
}

void Lane::message_arrived(bool measuring) {
  received.add_exclusive();
  if (role_ == Role::ping && measuring) round_trips.add(engine::now_ns() - sent_at_);
}

// ---- waiting

bool Lane::may_go_on() noexcept {
  return stream().receiver().sequence() != rx_seen_ ||
         (blocked_ && (stream().sender().sequence() != tx_seen_ || stream().sender().can_send()));
}

void Lane::ask_for_room() noexcept {
  // Credit arrives as a fragment, but the engine announces room in the ring only to those who ask.
  if (blocked_ && !stream().connection()->has_room()) stream().connection()->want_space();
}

}  // namespace sidestep::bench

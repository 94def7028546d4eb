// Bytes that go back to where they came from.
//
// A descriptor that another program is about to get must have everything in the kernel, but bytes
// that came over the engine and are unread lie in this process. So this end, R, asks its peer, S,
// to come down and to hold its direction there:
//
//   R: ask_down(3)      for good, and hold
//   S: switch_hold      a switch_down; S sends nothing behind it
//   R: returned ...  everything that S has sent and nobody has read, in order
//   R: returned_end  S sends these bytes over the anchor, and then goes on
//
// R first takes out what lies in the kernel behind unread engine bytes, and hands that back too; S
// has said how much it sent there. S does not hold if it has ended its anchor, or if others may
// have the anchor: they would not hold. R asks once, and not between hosts. It hands nothing back
// if there is too much or its ring is full; then the bytes stay where only this process reads them
// (preload/residue.hpp).
// If S has ended its direction and the anchor is still open (ending.cpp), its hold takes the end
// back: the end is then the anchor's, behind what S has sent again.
//
// holds_no_more_ says that S has answered, or that its own program has been given the anchor. Only
// then do its threads use the anchor past the lock. All of this relies on the single order of
// seq_cst operations: if S enters `holding` or `offering` and then finds holds_no_more_ unset, any
// thread that loads the state after holds_no_more_, to wait for the one or to use the anchor, finds
// it there.
#include <cerrno>
#include <cstring>
#include <new>

#include "engine/base/tcp_counts.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {
namespace {

constexpr size_t kMostHandedBack = size_t{1} << 20;

}  // namespace

// ---- the side that reads

void Receiver::on_hold(uint64_t kernel_bytes) noexcept {
  if (kernel_bytes == HoldPayload::kNotHeld) {
    was_held_.store(true, std::memory_order_release);
    return;
  }
  held_at_.store(kernel_bytes, std::memory_order_relaxed);
  // The release in it pairs with held_at_locked(). seq_cst: either this function sees that nothing
  // is wanted any more, or end_hold_locked() sees that the peer holds.
  peer_holds_.store(true, std::memory_order_seq_cst);
  was_held_.store(true, std::memory_order_release);
  // Nobody will read the mark, or it comes too late.
  if (stream_.closed_ || !wants_hold_.load(std::memory_order_seq_cst)) answer_hold();
}

void Receiver::end_hold_locked() noexcept {
  if (stream_.for_good_.load(std::memory_order_relaxed))
    stream_.sender_.holds_no_more_.store(true, std::memory_order_seq_cst);
  wants_hold_.store(false, std::memory_order_seq_cst);
  answer_hold();
}

bool Receiver::waits_for_hold() const noexcept {
  // A peer that has ended its direction holds it if the anchor is still open.
  return wants_hold_.load(std::memory_order_relaxed) &&
         !was_held_.load(std::memory_order_acquire) && !stream_.is_aborted() &&
         !(peer_has_finished() && peer_has_ended(stream_.anchor_state()));
}

std::optional<uint64_t> Receiver::held_at_locked() const noexcept {
  if (!peer_holds_.load(std::memory_order_acquire)) return std::nullopt;
  return held_at_.load(std::memory_order_relaxed);
}

bool Receiver::return_unread_locked(std::span<const std::byte> unread) noexcept {
  if (!held_at_locked() || stream_.is_aborted() || stream_.connection() == nullptr ||
      stream_.connection()->is_closed())
    return false;
  bool fits = unread.size() <= kMostHandedBack;
  for (size_t done = 0; fits && done < unread.size();) {
    const size_t part = std::min<size_t>(unread.size() - done, kMaxFragmentPayload);
    const uint64_t position = stream_.connection()->reserve(static_cast<uint32_t>(part), false);
    fits = position != Orb::kNoSpace;
    if (!fits) break;
    std::byte* const at = stream_.connection()->orb().at(position);
    const FragmentHeader header{stream_.peer_stream_,
                                static_cast<uint32_t>(part),
                                stream_.peer_generation_,
                                static_cast<uint8_t>(FragmentType::returned),
                                {}};
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, unread.data() + done, part);
    stream_.connection()->orb().commit(position, static_cast<uint32_t>(part));
    done += part;
  }
  if (!fits || !stream_.send_value(FragmentType::returned_end, unread.size())) {
    defer(kEndHold);  // with no bytes
    return false;
  }
  peer_holds_.store(false, std::memory_order_relaxed);
  if (end_withdrawn_.load(std::memory_order_relaxed)) {
    end_came_back_ = true;
    peer_fin_.store(false, std::memory_order_relaxed);
  }
  stream_.services_->counters().handed_back_bytes.add(unread.size());
  return true;
}

// ---- the side that has sent

bool Sender::may_hold() const noexcept {
  // This side may hold only if it knows that nobody else has sent: otherwise the bytes that come
  // back to it and those of a child that shares the descriptor would change places.
  return !holds_no_more_.load(std::memory_order_seq_cst) &&
         tcp_excess(stream_.anchor(), stream_.accepted_, kernel_bytes()) == 0;
}

bool Sender::send_switch_down_locked() noexcept {
  const uint64_t engine = engine_.load(std::memory_order_relaxed);
  if (!hold_wanted_.load(std::memory_order_relaxed))
    return stream_.send_value(FragmentType::switch_down, engine);
  const SenderState before = state();
  bool holds = stream_.shares_host() && !has_replay() && may_hold();
  if (holds) {
    replay_.clear();
    enter(before == SenderState::engine ? SenderState::offering : SenderState::holding);
    holds = may_hold();
  }
  const HoldPayload hold{engine, holds ? kernel_bytes() : HoldPayload::kNotHeld};
  const bool sent = stream_.send_control(FragmentType::switch_hold, &hold, sizeof hold);
  if (sent) {
    hold_wanted_.store(false, std::memory_order_relaxed);
    holds_no_more_.store(true, std::memory_order_seq_cst);
  }
  if ((!sent || !holds) && awaits_return()) {
    enter(before);
    stream_.signal(kWritable);
  }
  return sent;
}

bool Sender::take_back(std::span<const std::byte> bytes) noexcept {
  const SideGuard guard(*this);
  bool takes = awaits_return() && replay_.size() + bytes.size() <= kMostHandedBack;
  if (takes) {
    try {
      replay_.insert(replay_.end(), bytes.begin(), bytes.end());
    } catch (const std::bad_alloc&) {
      takes = false;  // losing the connection is better than a hole in a stream
    }
  }
  return takes;
}

bool Sender::end_return(uint64_t bytes) noexcept {
  const SideGuard guard(*this);
  bool fits = awaits_return() && (bytes == 0 || bytes == replay_.size());
  if (fits) {
    if (bytes == 0) replay_.clear();
    try {
      replay_.insert(replay_.end(), kept_.begin(), kept_.end());
      kept_ = std::vector<std::byte>();  // = {} would keep the memory
    } catch (const std::bad_alloc&) {
      fits = false;
    }
  }
  if (fits) {
    if (replay_.empty()) has_kept_ = false;
    enter(replay_.empty() ? SenderState::kernel : SenderState::replaying);
    defer(kReplay);
  }
  return fits;
}

}  // namespace sidestep::engine

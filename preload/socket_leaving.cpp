// How a socket and its unread bytes leave the engine, and how its stream ends.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>

#include "engine/base/tcp_counts.hpp"
#include "engine/connection/connection.hpp"
#include "engine/node/node.hpp"
#include "preload/residue.hpp"
#include "preload/socket.hpp"

namespace sidestep::preload {

using engine::Phase;
using engine::RxHead;
namespace sys = engine::sys;

void Socket::leave_engine(engine::Reason reason) noexcept {
  engine::Patience patience(1'000'000'000);
  leave_engine(reason, patience);
}

bool Socket::hands_over(engine::Reason reason, uint64_t seconds) noexcept {
  // A peer that has no processor is worth waiting for. A peer that is stopped must not hold this
  // call up for longer than a program bears.
  engine::Patience patience(seconds * 1'000'000'000);
  leave_engine(reason, patience);
  return unread_residue() == 0 && !is_torn();
}

bool Socket::waits_in_vain(engine::Patience& patience, engine::Patience::Awaits what) noexcept {
  // A connection that may make way for another could not be used here without a lock.
  return stream_->shares_host() && patience.is_vain(*stream_->connection(), what);
}

void Socket::leave_engine(engine::Reason reason, engine::Patience& patience) noexcept {
  if (is_plain()) return;
  stream_->request_down(reason, true);
  using Awaits = engine::Patience::Awaits;
  const auto wait_until = [&](Awaits what, auto&& holds) {
    while (!holds()) {
      engine::Node::running()->progress().poll_for(*stream_);
      if (holds() || waits_in_vain(patience, what) || !patience.pause()) return;
    }
  };
  wait_until(Awaits::engine, [this] { return has_left(); });
  move_unread_away();
  // Whatever the program does next must not meet the engine any more.
  const bool settles = residue_ == nullptr;
  wait_until(Awaits::program, [&] {
    return has_come_back() && (!settles || !stream_->is_bound() || stream_->is_aborted());
  });
}

size_t Socket::unread_residue() noexcept {
  return residue_ != nullptr ? residue_->left() : 0;
}

Socket::End Socket::end_stream() noexcept {
  if (stream_->connection() == nullptr || stream_->is_aborted()) return {.marked = true};
  // If the stream is on the kernel for good, the peer looks at nothing but the anchor's end, and
  // another process may go on with the anchor.
  if (stream_->phase() == Phase::kernel) return {.marked = !sender().has_replay()};
  // As in the kernel, closing without having read everything tells the peer that it is lost.
  bool unread = false;
  if (receiver().mutex().lock_unless_stuck()) {
    const engine::SideGuard guard(receiver(), std::adopt_lock);
    // Done before the look at what comes next, which may make this end receive-ready again.
    receiver().stay_unready_locked();
    const RxHead head = receiver().head_locked();
    int in_kernel = 0;
    if (head.kind == RxHead::Kind::kernel) sys::ioctl(anchor(), SIOCINQ, &in_kernel);
    unread = head.kind == RxHead::Kind::data || head.switch_pending || in_kernel != 0;
  }
  if (stream_->is_bound() && (unread || resets_at_close())) {
    stream_->reset();
    return {true, true};
  }
  if (!sender().mutex().lock_unless_stuck()) return {.stuck = true};
  const engine::SideGuard guard(sender(), std::adopt_lock);
  const bool sent = sender().finish_locked();
  if (sent) sender().closes_anchor_locked();
  return {.marked = sent};
}

void Socket::move_unread_away() noexcept {
  if (!receiver().mutex().lock_unless_stuck()) return;
  const engine::SideGuard guard(receiver(), std::adopt_lock);
  if (stream_->connection() == nullptr || residue_ != nullptr) {
    receiver().end_hold_locked();
    return;
  }
  const size_t unread = receiver().queued();
  const std::optional<uint64_t> mark = receiver().held_at_locked();
  const uint64_t held_at = mark.value_or(0);
  const bool is_held =
      mark.has_value() && held_at >= receiver().kernel_bytes();  // less is nonsense
  // Bytes that the kernel has behind unread bytes of the engine have to come along.
  const auto in_kernel = [&] {
    return is_held ? held_at - std::min(held_at, receiver().kernel_bytes()) : 0;
  };
  Residue* residue = nullptr;
  bool whole = true;
  // The kernel bytes that are asked for have been sent already: they are here, or on their way on
  // this host.
  const auto take_from_kernel = [&](uint64_t bytes) {
    while (bytes != 0 && whole) {
      std::byte buffer[4096];
      const long n = sys::recvfrom(anchor(), buffer, std::min<uint64_t>(sizeof buffer, bytes),
                                   MSG_DONTWAIT, nullptr, nullptr);
      if (n == -EAGAIN) {
        pollfd fd{anchor(), POLLIN, 0};
        const timespec limit{0, 100'000'000};
        whole = sys::ppoll(&fd, 1, &limit, nullptr) == 1;
        continue;
      }
      whole = n > 0 && residue->append(buffer, static_cast<size_t>(n));  // sized for all of them
      if (!whole) break;
      receiver().count_kernel(static_cast<uint64_t>(n));
      bytes -= static_cast<uint64_t>(n);
    }
  };
  while (whole) {
    const RxHead head = receiver().head_locked();
    const bool kernel_part = head.kind == RxHead::Kind::kernel && head.switch_pending;
    if (head.kind != RxHead::Kind::data && !kernel_part) break;
    if (residue == nullptr)
      residue = Residue::create(
          unread + std::min<uint64_t>(  // avoids overflow: the peer says how many
                       std::max(kernel_part ? head.limit : 0, in_kernel()), Residue::kMost));
    if (residue == nullptr) break;
    if (kernel_part) {
      take_from_kernel(head.limit);
      continue;
    }
    // A peer that did not come down in time may have sent more since. That stays queued, and is
    // read after the residue.
    if (!residue->append(head.data, head.limit)) break;
    receiver().consume_locked(head.limit);
  }
  if (residue != nullptr && is_held && whole) {
    take_from_kernel(in_kernel());
    const auto before = engine::tcp_counts(anchor());
    const size_t size = residue->all().size();
    if (whole && receiver().return_unread_locked(residue->all())) {
      Residue::release(residue);
      residue = nullptr;
      // Waits for no more than any receive buffer takes at once.
      if (before) awaited_ = before->received + std::min<size_t>(size, 32 * 1024);
    }
  }
  residue_ = residue;
  receiver().end_hold_locked();
}

bool Socket::has_come_back() noexcept {
  if (stream_->is_aborted()) return true;
  if (awaited_ != 0) {
    const auto counts = engine::tcp_counts(anchor());
    if (counts && counts->received < awaited_) return false;
    awaited_ = 0;
  }
  return !sender().has_replay();
}

bool Socket::is_torn() noexcept {
  if (stream_->is_detached()) return stream_->is_aborted();
  return stream_->connection() != nullptr && !stream_->is_aborted() &&
         (!has_left() || receiver().queued() != 0 || sender().has_replay());
}

}  // namespace sidestep::preload

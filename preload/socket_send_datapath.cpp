// Writing to tracked sockets. As in socket_recv_datapath.cpp, nothing is allocated, and system
// calls are made only on the anchor and to sleep.
#include <algorithm>

#include "engine/base/iovec.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "preload/anchor_calls.hpp"
#include "preload/signals.hpp"
#include "preload/socket.hpp"
#include "preload/socket_lifecycle.hpp"

namespace sidestep::preload {

using engine::Carrier;
using engine::total_length;
using engine::touch_vector;
namespace sys = engine::sys;

namespace {

/// How much of the program's memory is touched before a lock is taken, and then copied under it.
constexpr size_t kAtOnce = size_t{1} << 18;

/// How much the kernel copies at a time. It takes nothing of a piece that it cannot copy whole.
constexpr size_t kPiece = 16 * 1024;

}  // namespace

Socket::Step Socket::transmit_step_locked(const iovec* vector, int count, size_t offset, int flags,
                                          size_t there) noexcept {
  const size_t length = total_length(vector, count);
  Step step;
  if (write_shut_.load(std::memory_order_relaxed)) {
    step.error = EPIPE;
    return step;
  }
  if (offset != length && sender().has_ended_locked()) {
    step.error = EAGAIN;
    step.exiting = true;
    return step;
  }
  if (stream_->is_aborted()) {
    step.error = EPIPE;  // or the error that transmit() finds when it has nothing else to report
    return step;
  }
  if (sender().carrier() == Carrier::kernel) {
    if (offset != length && sender().has_replay() && !sender().flush_replay_locked()) {
      step.bytes = sender().keep_for_anchor_locked(vector, count, offset, there);
      if (step.bytes == 0) step.error = EAGAIN;
      return step;
    }
    sender().before_anchor_locked();
    // Sends only what has been touched, unless all of it has to be one call. If there is a bad
    // address, the kernel says so.
    constexpr int kOfEachPart = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE;
    const bool whole = (flags & ~kOfEachPart) != 0 || there < std::min(length - offset, kAtOnce);
    const long result = anchor_call(false, anchor(), vector, count, offset,
                                    whole ? length - offset : there, flags & ~MSG_DONTWAIT);
    if (result >= 0) {
      step.bytes = static_cast<size_t>(result);
      sender().count_kernel(step.bytes);
    } else {
      step.error = static_cast<int>(-result);
    }
    return step;
  }
  if (offset == length) return step;
  if (there < std::min(length - offset, kPiece)) {
    step.error = EFAULT;
    return step;
  }
  const bool more = (flags & MSG_MORE) != 0;
  step.bytes = more || sender().holds_back()
                   ? sender().send_held_locked(vector, count, offset, there, more)
                   : sender().send_locked(vector, count, offset, there);
  if (step.bytes == 0) step.bytes = sender().keep_for_anchor_locked(vector, count, offset, there);
  if (step.bytes == 0) step.error = EAGAIN;
  return step;
}

size_t Socket::try_transmit(const iovec& part) noexcept {
  if (sender().carrier() != Carrier::engine || sender().holds_back() ||
      !sender().mutex().try_lock())
    return 0;
  size_t done = 0;
  // Checks once more under the lock: the carrier changes only under it.
  if (sender().carrier() == Carrier::engine && !stream_->is_aborted() &&
      !sender().has_ended_locked() && !sender().holds_back() &&
      !write_shut_.load(std::memory_order_relaxed))
    done = sender().send_locked(&part, 1, 0, part.iov_len);
  sender().unlock();
  return done;
}

ssize_t Socket::transmit(const iovec* vector, int count, int flags, size_t done) noexcept {
  const size_t length = total_length(vector, count);
  const bool may_block = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
  uint64_t deadline = 0;
  const Interruptions interruptions;
  if (sender().carrier() == Carrier::kernel) {
    sender().note_writing();
    help_streams_to_move();
  }
  for (;;) {
    const uint32_t sequence = sender().sequence();
    // Does not touch what has to wait anyway: that would be touched again whenever there is room
    // for a little.
    const size_t at_once = sender().carrier() == Carrier::kernel
                               ? kAtOnce
                               : std::clamp<size_t>(sender().room(), kPiece, kAtOnce);
    const size_t there = touch_vector(vector, count, done, std::min(length - done, at_once));
    Step step;
    {
      const engine::SideGuard guard(sender());
      step = transmit_step_locked(vector, count, done, flags, there);
    }
    done += step.bytes;
    if (done == length && step.error == 0) return static_cast<ssize_t>(done);
    if (step.error != 0 && step.error != EAGAIN) {
      if (done != 0) return static_cast<ssize_t>(done);
      if (step.error == EPIPE && stream_->is_aborted()) {
        if (const int error = stream_->errors().take(); error != 0) {
          stream_->errors().note_told();
          step.error = error;
        }
      }
      if (step.error == EPIPE && (flags & MSG_NOSIGNAL) == 0) raise_sigpipe();
      errno = step.error;
      return -1;
    }
    if (step.bytes != 0) continue;
    if (step.exiting && AllSockets::is_finishing() && may_block) {
      // Another thread is in exit(). With the kernel's sockets, this thread would not exist any
      // more.
      const timespec moment{0, 1'000'000};
      sys::ppoll(nullptr, 0, &moment, nullptr);
      continue;
    }
    if (step.exiting && !AllSockets::is_finishing()) {
      // What is left of the process (destructors of other libraries) can no longer send anything.
      if (done != 0) return static_cast<ssize_t>(done);
      errno = EPIPE;
      return -1;
    }
    if (!step.exiting && sender().carrier() == Carrier::engine) {
      // Credit or room may be waiting to be picked up.
      may_block ? void(engine::Node::running()->progress().poll_for(*stream_))
                : engine::Node::running()->progress().drain_for(*stream_);
      if (sender().sequence() != sequence) continue;
      // An edge-triggered set does not look again until it is told of room.
      if (sender().can_send_or_wants_space()) continue;
    }
    if (!may_block) {
      if (sender().sequence() != sequence) continue;
      if (done != 0) return static_cast<ssize_t>(done);
      errno = EAGAIN;
      return -1;
    }
    if (deadline == 0) {
      const uint64_t limit = timeout(SO_SNDTIMEO);
      deadline = limit != 0 ? engine::now_ns() + limit : kForever;
    }
    if (const int error = wait(false, sequence, deadline, interruptions); error != 0) {
      if (done != 0) return static_cast<ssize_t>(done);
      errno = error;
      return -1;
    }
  }
}

}  // namespace sidestep::preload

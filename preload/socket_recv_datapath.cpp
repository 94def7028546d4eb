// Reading tracked sockets. This code allocates nothing, and makes system calls only on the anchor
// (while a direction is on the kernel) and to sleep.
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <span>
#include <utility>

#include "engine/base/iovec.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/node/node.hpp"
#include "engine/progress/wait.hpp"
#include "preload/anchor_calls.hpp"
#include "preload/residue.hpp"
#include "preload/signals.hpp"
#include "preload/socket.hpp"

namespace sidestep::preload {

using engine::Carrier;
using engine::copy_to;
using engine::RxHead;
using engine::total_length;
using engine::touch_vector;
using engine::touch_vector_to_write;
namespace sys = engine::sys;

namespace {

/// Called before a read whose error could not be passed on. The kernel reports an error only once.
bool kernel_has_bytes(int fd) noexcept {
  int queued = 0;
  return sys::ioctl(fd, SIOCINQ, &queued) == 0 && queued > 0;
}

/// True for those of TCP's errors after which nothing more comes.
bool ends_connection(int error) noexcept {
  return error == ECONNRESET || error == EPIPE || error == ETIMEDOUT;
}

}  // namespace

Socket::Step Socket::receive_step_locked(const iovec* vector, int count, size_t offset,
                                         int flags) noexcept {
  const size_t length = total_length(vector, count);
  const bool peek = (flags & MSG_PEEK) != 0;
  Step step;
  if (residue_ != nullptr) {
    step.bytes = residue_->read(vector, count, offset, peek, (flags & MSG_TRUNC) == 0);
    const bool left = residue_->left() != 0;
    step.probed = left && step.bytes == 0 && offset == length;
    if (left && step.bytes == 0 && !step.probed) step.error = EFAULT;
    // A peek that has to find all bytes looks beyond the residue.
    const bool goes_on = peek && (flags & MSG_WAITALL) != 0 && step.bytes < length - offset;
    if (left && (!goes_on || step.bytes == 0)) return step;
    if (step.bytes != 0 && !goes_on) return step;
  }
  do {
    const RxHead head = receiver().head_locked();
    const size_t room = length - offset - step.bytes;
    switch (head.kind) {
      case RxHead::Kind::kernel: {
        if (step.bytes != 0 && !kernel_has_bytes(anchor())) return step;
        if (room == 0) {
          // Without a buffer recv(2) waits all the same, and cannot tell an end from bytes.
          const long result = anchor_call(true, anchor(), vector, count, offset, 0, flags);
          step.probed = result >= 0;
          step.error = result < 0 ? static_cast<int>(-result) : 0;
          return step;
        }
        const size_t limit = head.limit != 0 ? std::min<size_t>(room, head.limit) : room;
        const long result = anchor_call(true, anchor(), vector, count, offset + step.bytes, limit,
                                        flags & (MSG_PEEK | MSG_TRUNC));
        if (result > 0) {
          const auto received = static_cast<size_t>(result);
          step.bytes += received;
          if (peek) {
            if (head.switch_pending && received == head.limit)
              peek_engine_locked(vector, count, offset, flags, false, step);
            return step;
          }
          receiver().count_kernel(received);
          // As in the kernel, one call takes what is there, whichever carrier it came on.
          if (head.switch_pending && received == head.limit) break;
        } else if (step.bytes != 0) {
          return step;
        } else if (result == 0) {
          if (!head.switch_pending && receiver().doubts_end()) {
            step.error = EAGAIN;
            step.doubtful = true;
          } else if ((head.switch_pending && !stream_->errors().was_told()) ||
                     receiver().end_is_lost()) {
            step.error = ECONNRESET;  // more was announced, or may have been
          } else {
            step.end = true;
          }
        } else {
          step.error = static_cast<int>(-result);
        }
        return step;
      }
      case RxHead::Kind::data: {
        const size_t size = std::min<size_t>(room, head.limit);
        step.probed = room == 0;
        if (step.probed) return step;
        if (peek) {
          peek_engine_locked(vector, count, offset, flags, true, step);
          return step;
        }
        // As in the kernel, what cannot be copied whole is not taken.
        const bool copied = (flags & MSG_TRUNC) != 0 ||
                            copy_to(vector, count, offset + step.bytes, head.data, size) == size;
        if (!copied) {
          if (step.bytes == 0) step.error = EFAULT;
          return step;
        }
        receiver().consume_locked(size);
        step.bytes += size;
        break;
      }
      case RxHead::Kind::empty:
        if (step.bytes == 0) step.error = EAGAIN;
        return step;
      case RxHead::Kind::end:
        step.end = true;
        return step;
      case RxHead::Kind::error:
        step.error = head.error;
        return step;
    }
  } while (offset + step.bytes < length);
  return step;
}

void Socket::peek_engine_locked(const iovec* vector, int count, size_t offset, int flags,
                                bool first, Step& step) noexcept {
  const size_t length = total_length(vector, count);
  const bool copies = (flags & MSG_TRUNC) == 0;
  bool cut = false;
  const bool moves_down = receiver().peek_locked([&](const std::byte* data, size_t available) {
    const size_t part = std::min(available, length - offset - step.bytes);
    cut = copies && copy_to(vector, count, offset + step.bytes, data, part) != part;
    if (!cut) step.bytes += part;
    return !cut && offset + step.bytes < length;
  });
  if (cut && step.bytes == 0) step.error = EFAULT;
  // Behind these bytes the anchor goes on, with what it has not shown yet.
  if (!moves_down || !first || cut || offset + step.bytes >= length) return;
  const long result = anchor_call(true, anchor(), vector, count, offset + step.bytes,
                                  length - offset - step.bytes, flags & (MSG_PEEK | MSG_TRUNC));
  if (result > 0) step.bytes += static_cast<size_t>(result);
}

bool Socket::nothing_follows() noexcept {
  if (read_shut_.load(std::memory_order_relaxed) || receiver().peer_has_finished() ||
      stream_->is_aborted())
    return true;
  if (receiver().carrier() == Carrier::engine && !receiver().is_complete()) return false;
  pollfd fd{anchor(), POLLRDHUP, 0};
  const timespec now{};
  if (sys::ppoll(&fd, 1, &now, nullptr) <= 0) return false;
  if (!receiver().doubts_end()) return true;
  engine::Node::running()->streams().question_end(*stream_);
  return false;
}

size_t Socket::try_receive(const iovec& part, size_t near, size_t& more) noexcept {
  if (receiver().carrier() != Carrier::engine || part.iov_len == 0 || receiver().low_water() != 1)
    return 0;
  if (receiver().queued() == 0) {
    engine::Node::running()->progress().poll_for(*stream_);
    if (receiver().queued() == 0) return 0;
  }
  if (near < part.iov_len && near < receiver().queued()) [[unlikely]] {
    more = std::min(part.iov_len, receiver().queued());
    return 0;
  }
  if (!receiver().mutex().try_lock()) return 0;
  const auto unlocked = [this](size_t bytes) {
    receiver().unlock();
    return bytes;
  };
  size_t done = 0;
  if (residue_ == nullptr) {
    while (done < part.iov_len) {
      const std::span<const std::byte> data = receiver().data_locked();
      if (data.empty()) {
        const RxHead head = receiver().head_locked();
        if (head.kind == RxHead::Kind::data) continue;
        if (head.kind == RxHead::Kind::kernel && done != 0 && kernel_has_bytes(anchor()))
            [[unlikely]]
          // The direction has moved down meanwhile: one call takes what is there.
          return unlocked(done + receive_step_locked(&part, 1, done, 0).bytes);
        break;
      }
      const size_t size = std::min(part.iov_len - done, data.size());
      std::byte* const to = static_cast<std::byte*>(part.iov_base) + done;
      if (engine::copy_out(to, data.data(), size) != size) [[unlikely]]
        break;
      receiver().consume_locked(size);
      done += size;
    }
  }
  return unlocked(done);
}

size_t Socket::receive_at_once(const iovec& part) noexcept {
  size_t more = 0;
  return try_receive(part, engine::touch(part.iov_base, std::min(part.iov_len, kNear)), more);
}

ssize_t Socket::receive(const iovec* vector, int count, int flags) noexcept {
  const size_t length = total_length(vector, count);
  const bool may_block = !nonblocking() && (flags & MSG_DONTWAIT) == 0;
  const bool all = (flags & MSG_WAITALL) != 0;
  const bool peeks_all = all && (flags & MSG_PEEK) != 0;
  const bool is_simple = count == 1 && (flags & ~MSG_NOSIGNAL) == 0;
  const auto mark = static_cast<size_t>(receiver().low_water());
  const size_t least = all ? length : (flags & MSG_PEEK) != 0 ? 1 : std::min(mark, length);
  uint64_t deadline = 0;  // set when it is first needed
  size_t done = 0;
  bool drained = false;
  bool looked_late = false;
  int kernel_error = 0;
  const Interruptions interruptions;
  if (receiver().carrier() == Carrier::kernel) {
    receiver().note_reading();
    help_streams_to_move();
  } else if (may_block && is_simple && receiver().queued() == 0 &&
             engine::poll_shortly(engine::Node::running()->progress(), engine::SpinPeer(*stream_),
                                  [this] { return receiver().queued() != 0; })) {
    if (const size_t now = receive_at_once(*vector); now != 0) return static_cast<ssize_t>(now);
  }
  for (;;) {
    const uint32_t sequence = receiver().sequence();
    const size_t queued = receiver().queued();
    if (queued != 0 && (flags & MSG_TRUNC) == 0) {
      touch_vector_to_write(vector, count, done, std::min(length - done, queued));
    } else if ((flags & MSG_TRUNC) == 0) {
      touch_vector(vector, count, done, std::min(length - done, kNear));  // little may come
    }
    // Asked before the look, so that the look finds what comes with the end.
    const bool is_last = peeks_all && nothing_follows();
    Step step;
    {
      const engine::SideGuard guard(receiver());
      if (peeks_all) done = 0;
      step = receive_step_locked(vector, count, done, flags);
    }
    done += step.bytes;
    if (step.end && kernel_error != 0) step.error = std::exchange(kernel_error, 0);
    const bool failed = step.error != 0 && step.error != EAGAIN;
    if ((step.end || failed || step.doubtful) && !drained && stream_->is_bound()) {
      // The anchor may have ended because the peer went on over the engine, and finished there.
      // Whatever it posted earlier has arrived, but perhaps nobody has looked yet. The error is
      // kept because the kernel reports it only once.
      if (failed) kernel_error = step.error;
      engine::Node::running()->progress().drain_for(*stream_);
      drained = true;
      continue;
    }
    if (step.doubtful && !read_shut_.load(std::memory_order_relaxed))
      engine::Node::running()->streams().question_end(*stream_);
    if ((step.end && !failed) || step.probed || (done != 0 && (done >= least || is_last)))
      return static_cast<ssize_t>(done);
    if (failed) {
      if (done != 0) return static_cast<ssize_t>(done);
      {
        const engine::SideGuard guard(receiver());
        receiver().clear_error_locked();
      }
      if (ends_connection(step.error)) stream_->errors().note_told();
      errno = step.error;
      return -1;
    }
    if (read_shut_.load(std::memory_order_relaxed)) return static_cast<ssize_t>(done);
    if (!may_block) {
      // Whatever was sent before this call has arrived, but perhaps nobody has looked, or another
      // thread is just taking it in. The program may also have been told of the anchor's end.
      if (!drained && receiver().may_get_from_engine()) {
        engine::Node::running()->progress().drain_for(*stream_);
        drained = true;
      }
      if (receiver().sequence() != sequence) continue;
      if (done != 0) return static_cast<ssize_t>(done);
      errno = EAGAIN;
      return -1;
    }
    if (receiver().carrier() == Carrier::engine &&
        engine::Node::running()->progress().poll_for(*stream_) && receiver().sequence() != sequence)
      continue;  // something arrived; look once more before deciding to wait
    if (deadline == 0) {
      const uint64_t limit = timeout(SO_RCVTIMEO);
      deadline = limit != 0 ? engine::now_ns() + limit : kForever;
    }
    const bool for_more = peeks_all && done != 0;
    if (const int error = wait(true, sequence, deadline, interruptions, for_more); error != 0) {
      // The same holds when the time is up.
      if (error == EAGAIN && !looked_late && receiver().may_get_from_engine()) {
        engine::Node::running()->progress().drain_for(*stream_);
        looked_late = true;
        if (receiver().sequence() != sequence) continue;
      }
      if (done != 0) return static_cast<ssize_t>(done);
      errno = error;
      return -1;
    }
    // As a rule, what the thread has waited for is here, and this is the shortest way to it.
    if (is_simple)
      if (const size_t now = receive_at_once(*vector); now != 0) return static_cast<ssize_t>(now);
  }
}

}  // namespace sidestep::preload

// TCP_CORK and MSG_MORE: bytes that wait for more.
//
// As in the kernel, bytes that fill a segment go out, and the rest is held back until the program
// takes the cork out, sets TCP_NODELAY, sends without MSG_MORE, ends the direction, or has let
// 200 ms pass. It also goes out when there is no room for more. Held bytes have been taken from the
// program but not sent: they come behind engine_bytes(), and credit is left for them. When the
// direction leaves the engine, they go to the anchor, whose own cork goes on holding them, or
// behind what goes there first. All of this happens under the sending lock; while bytes are held,
// kRelease is deferred.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "engine/base/clock.hpp"
#include "engine/base/iovec.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"

namespace sidestep::engine {
namespace {

constexpr size_t kSegment = 65'483;  // of the loopback device
constexpr uint64_t kLongest = 200'000'000;

}  // namespace

void Sender::held_changed_locked() noexcept {
  held_size_.store(held_.size(), std::memory_order_relaxed);
  holds_back_.store(corked_ || !held_.empty(), std::memory_order_relaxed);
}

size_t Sender::send_held_locked(const iovec* vector, int count, size_t offset, size_t length,
                                bool more) noexcept {
  if (stream_.connection()->is_closed()) return 0;
  more = more || corked_;
  const size_t all = held_.size() + length;
  const uint64_t room = room_behind(engine_bytes());
  // This much goes out, and the rest waits. If there is no room for the rest, nothing waits.
  const size_t out = !more || all >= room ? all : all - all % kSegment;
  size_t done = 0;
  if (out != 0) {
    if (!flush_held_locked()) return 0;
    const size_t now = out - (all - length);
    done = send_locked(vector, count, offset, now);
    if (done < now) return done;
  }
  if (done == length) return done;
  try {
    const size_t before = held_.size();
    held_.resize(before + length - done);
    // Memory that went away since the caller looked is left out.
    const size_t copied =
        copy_from(held_.data() + before, vector, count, offset + done, length - done);
    held_.resize(before + copied);
    done += copied;
    if (before == 0) release_at_ = now_ns() + kLongest;
  } catch (const std::bad_alloc&) {
    if (!flush_held_locked()) return done;
    return done + send_locked(vector, count, offset + done, length - done);
  }
  held_changed_locked();
  if (!held_.empty()) defer(kRelease);
  return done;
}

bool Sender::flush_held_locked() noexcept {
  if (held_.empty()) return true;
  if (carrier() != Carrier::engine || stream_.connection()->is_closed()) return false;
  const iovec part{held_.data(), held_.size()};
  const size_t sent = send_locked(&part, 1, 0, held_.size());
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(sent));
  release_at_ = 0;
  held_changed_locked();
  return held_.empty();
}

void Sender::take_held_down_locked() noexcept {
  if (held_.empty()) return;
  size_t sent = 0;
  if (!has_replay()) {
    before_anchor_locked();
    const long result = sys::sendto(stream_.anchor(), held_.data(), held_.size(),
                                    MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE, nullptr, 0);
    if (result > 0) sent = static_cast<size_t>(result);
    count_kernel(sent);
  }
  held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(sent));
  if (!held_.empty()) {
    // Bytes that are returned go before these.
    std::vector<std::byte>& last = awaits_return() ? kept_ : replay_;
    try {
      last.insert(last.end(), held_.begin(), held_.end());
    } catch (const std::bad_alloc&) {
      defer(kReset);  // better than a hole
    }
    if (!awaits_return()) {
      enter(SenderState::replaying);
      defer(kReplay);
    }
    held_.clear();
  }
  held_changed_locked();
}

void Sender::look_at_cork_locked() noexcept {
  int value = 0;
  socklen_t length = sizeof value;
  corked_ =
      sys::getsockopt(stream_.anchor(), IPPROTO_TCP, TCP_CORK, &value, &length) == 0 && value != 0;
  held_changed_locked();
}

void Sender::note_cork() noexcept {
  if (!stream_.is_bound()) return;  // whoever moves it up looks at the cork
  const SideGuard guard(*this);
  if (carrier() == Carrier::engine) {
    look_at_cork_locked();
    if (!corked_) flush_held_locked();
  }
}

void Sender::push() noexcept {
  if (held_size_.load(std::memory_order_relaxed) == 0) return;
  const SideGuard guard(*this);
  flush_held_locked();
}

}  // namespace sidestep::engine

// SO_SNDBUF and SO_RCVBUF, if the program has set them, bound how much is sent but unread.
//
// In the kernel, the bound is what fits into the receiver's buffer and then into the sender's. The
// engine has one place for both, so the sum counts. Each end tells the other the sizes that its
// program has set. The sender holds back credit. The receiver gives credit when a quarter of what
// may be under way has been read, and so gives it in smaller pieces. A size that nobody has set,
// which the kernel would choose and change, counts as the kernel's initial size if the other one is
// set; if neither is set, only the window counts.
//
// SO_RCVLOWAT belongs here because the mark has to fit: as in the kernel, a buffer that the program
// has not set grows with it.
//
// Sender::held_back_ is computed under the receiving lock, which takes both sizes and the peer's
// window together, and is read under the sending lock: the number publishes nothing else.
#include <sys/socket.h>

#include <algorithm>

#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/stream/stream.hpp"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

namespace sidestep::engine {
namespace {

constexpr uint64_t kSend = 128 * 1024;
constexpr uint64_t kReceive = 64 * 1024;

/// How many bytes from `sender` to `receiver` may be sent and unread.
uint64_t limit(BufferSizes sender, BufferSizes receiver) noexcept {
  if (sender.send == 0 && receiver.receive == 0) return ~uint64_t{0};
  // The kernel uses half of a receive buffer for things other than payload.
  return std::max<uint64_t>(1, (sender.send != 0 ? sender.send : kSend) +
                                   (receiver.receive != 0 ? receiver.receive / 2 : kReceive));
}

BufferSizes set_sizes(int fd) noexcept {
  // As the kernel has them (SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK), including sizes set before the
  // socket was connected. A kernel before 5.15 does not tell; its sizes count as its own choice.
  constexpr int kSendLock = 1;
  constexpr int kReceiveLock = 2;
  const auto option = [fd](int name) {
    int value = 0;
    socklen_t length = sizeof value;
    const int result = sys::getsockopt(fd, SOL_SOCKET, name, &value, &length);
    return result == 0 && value > 0 ? value : 0;
  };
  const int locks = option(SO_BUF_LOCK);
  return {static_cast<uint32_t>((locks & kSendLock) != 0 ? option(SO_SNDBUF) : 0),
          static_cast<uint32_t>((locks & kReceiveLock) != 0 ? option(SO_RCVBUF) : 0)};
}

}  // namespace

void Receiver::note_buffers() noexcept {
  if (!stream_.is_bound()) return;  // bind() looks at them
  defer(kBuffers);
  stream_.run_deferred();
}

bool Receiver::is_limited() const noexcept {
  return own_buffers_.load(std::memory_order_relaxed) != BufferSizes{} ||
         peer_buffers_.load(std::memory_order_relaxed) != BufferSizes{};
}

void Receiver::put_low_water_locked(int bytes) noexcept {
  if (low_water() != 1)
    sys::setsockopt(stream_.anchor(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
}

void Receiver::note_low_water(int bytes) noexcept {
  {
    const SideGuard guard(*this);
    low_water_.store(bytes, std::memory_order_relaxed);
  }
  // The bytes that are there may be enough now.
  stream_.signal(kReadable);
  note_buffers();
}

bool Receiver::tell_buffers_locked() noexcept {
  if (goes_.load(std::memory_order_relaxed) != 0) put_low_water_locked(1);
  BufferSizes sizes = set_sizes(stream_.anchor());
  if (const auto mark = static_cast<uint32_t>(low_water());
      sizes.receive == 0 && mark > kReceive / 4)
    sizes.receive = 4 * mark;
  if (sizes == own_buffers_.load(std::memory_order_relaxed)) return true;
  const BuffersPayload payload{sizes.send, sizes.receive};
  if (!stream_.send_control(FragmentType::buffers, &payload, sizeof payload)) return false;
  own_buffers_.store(sizes, std::memory_order_relaxed);
  return true;
}

bool Receiver::set_limits_locked() noexcept {
  const BufferSizes own = own_buffers_.load(std::memory_order_relaxed);
  const BufferSizes peers = peer_buffers_.load(std::memory_order_relaxed);
  const uint64_t window = peer_window_.load(std::memory_order_relaxed);
  const uint64_t held_back = window - std::min(window, limit(own, peers));
  const uint64_t before = stream_.sender_.held_back_.exchange(held_back, std::memory_order_relaxed);
  if (held_back < before) stream_.signal(kWritable);
  const uint64_t step = std::max<uint64_t>(1, std::min(window_, limit(peers, own)) / 4);
  credit_step_.store(step, std::memory_order_relaxed);
  return carrier() == Carrier::engine &&
         engine_bytes() + window_ - credit_.load(std::memory_order_relaxed) >= step;
}

}  // namespace sidestep::engine

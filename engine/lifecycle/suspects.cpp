// The anchors of streams that the engine carries: which streams have news, and which are looked
// after because their anchor has ended (stream/anchor_watch.hpp).
#include <sys/epoll.h>

#include <algorithm>
#include <mutex>

#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/anchor_watch.hpp"

namespace sidestep::engine {

void NodeStreams::anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept {
  const ReceiveLockGuard guard(recv_lock());
  Stream* stream = table_.find(id, generation);
  if (stream != nullptr && !stream->is_closed()) {
    AnchorWatch(*stream).take(events);
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) suspect_locked(*stream);
    // The engine has no more part in a stream that is the kernel's for good, and every packet would
    // wake this thread. Under the lock the descriptor keeps its number. If a reader holds the lock,
    // the next event does this.
    if (stream->is_kernels_for_good() && stream->receiver().mutex().try_lock()) {
      const SideGuard side(stream->receiver(), std::adopt_lock);
      progress_.thread().unwatch_anchor(stream->anchor());
    }
  }
}

void NodeStreams::suspect_locked(Stream& stream) noexcept {
  if (!AnchorWatch(stream).suspect()) return;
  suspects_.push_back(&stream);
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void NodeStreams::forget_suspect_locked(Stream& stream) noexcept {
  AnchorWatch(stream).forget();
  std::erase(suspects_, &stream);
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void NodeStreams::question_end(Stream& stream) noexcept {
  const std::lock_guard guard(recv_lock());
  if (AnchorWatch(stream).question_end()) suspect_locked(stream);
}

void NodeStreams::check_suspects(uint64_t now) noexcept {
  const ReceiveLockGuard guard(recv_lock());
  progress_.drain_all_locked();
  std::erase_if(suspects_, [now](Stream* stream) { return AnchorWatch(*stream).is_settled(now); });
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

}  // namespace sidestep::engine

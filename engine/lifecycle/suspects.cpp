// The anchors of streams that the engine carries: what their news mean, and what is done about one
// that ends without the engine's end mark.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/progress/waiter.hpp"

namespace sidestep::engine {
namespace {

// Usually the end mark has arrived by then.
constexpr uint64_t kAskAfter = 20'000'000;
constexpr uint64_t kUnexplained = 5'000'000'000;

}  // namespace

void NodeStreams::anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock().lock();
  Stream* stream = table_.find(id, generation);
  if (stream != nullptr && !stream->closed_) {
    stream->anchor_failed_ = stream->anchor_failed_ || (events & EPOLLERR) != 0;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) suspect_locked(*stream);
    if (stream->has_replay()) stream->defer(Stream::kReplay);
    // An end that came over the engine may be left to the anchor.
    if ((events & EPOLLRDHUP) != 0 && stream->stay_down_.load(std::memory_order_relaxed))
      stream->defer(Stream::kSettle);
    if ((events & EPOLLIN) != 0 && stream->engine_sends_) stream->defer(Stream::kQuestionAnchor);
    // The program knows of an end that came over the engine: to a thread that waits for edges, a
    // second edge would mean something else. It does not know of what it still reads on the anchor.
    const bool dead = stream->is_dead();
    const bool known = stream->rx_carrier() == Carrier::engine &&
                       (dead || (stream->peer_fin_ && (events & (EPOLLHUP | EPOLLERR)) == 0));
    const bool writable = stream->tx_carrier() == Carrier::kernel || !(known || dead);
    const uint32_t news = (known ? 0 : kReadable) | (writable ? kWritable : 0);
    if (news != 0) stream->signal(news);
    if (stream->is_kernels_for_good()) {
      // The engine has no more part in the stream, and every packet would wake this thread. Under
      // the lock the descriptor keeps its number. If a reader holds the lock, the next event does
      // this.
      if (stream->recv_lock().try_lock()) {
        progress_.thread().unwatch_anchor(stream->anchor());
        stream->unlock_recv();
      }
    }
  }
  recv_lock().unlock();
}

void NodeStreams::suspect_locked(Stream& stream) noexcept {
  if (stream.suspect_) return;
  stream.suspect_ = true;
  stream.suspect_since_ = now_ns();
  stream.probe_wait_ = kAskAfter;
  stream.probe_at_ = now_ns() + kAskAfter;
  suspects_.push_back(&stream);
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void NodeStreams::forget_suspect_locked(Stream& stream) noexcept {
  stream.suspect_ = false;
  suspects_.erase(std::remove(suspects_.begin(), suspects_.end(), &stream), suspects_.end());
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void NodeStreams::question_end(Stream& stream) noexcept {
  recv_lock().lock();
  if (stream.doubts_end()) {
    stream.end_questioned_.store(true, std::memory_order_relaxed);
    suspect_locked(stream);
  }
  recv_lock().unlock();
}

void NodeStreams::check_suspects(uint64_t now) noexcept {
  // A peer sends its end mark before it ends the anchor, but the kernel may be faster, and the peer
  // may be slow to post: time says nothing. So this asks the peer over the engine; its answer comes
  // after the mark, if there is one. A peer that is gone is the connection's business.
  WakeBatch wake_ups_after_the_lock;
  recv_lock().lock();
  progress_.drain_all_locked();
  std::erase_if(suspects_, [&](Stream* stream) {
    if (stream->peer_fin_ || stream->is_dead() || stream->phase() != Phase::bound) return true;
    // The end of the anchor ends a direction that the kernel carries, and the kernel tells the
    // program. The other direction goes on, even over the engine (half close).
    // To the kernel, this side's shutdown() of reading looks like the peer's of writing.
    const bool ended_by_peer = !stream->read_shut_.load(std::memory_order_relaxed);
    const bool concerns_engine =
        (ended_by_peer && (stream->engine_sends_ || stream->doubts_end())) ||
        (stream->anchor_failed_ && stream->tx_carrier() == Carrier::engine);
    if (!concerns_engine) {
      stream->suspect_ = false;
      return true;
    }
    if (stream->connection()->is_dead() && !stream->landed_) {
      // The two ends are about to agree on how the stream goes on (stream/recovery.hpp). A reset,
      // or an end that nobody explains, comes from a process that is gone. suspect_since_ may be
      // later than `now`.
      if (!stream->anchor_failed_ && now < stream->suspect_since_ + kUnexplained) return false;
      stream->die(ECONNRESET);
      return true;
    }
    if (stream->probe_answered_ && stream->doubts_end()) {
      // The peer lives, and has not moved the direction, which ended where it was, past the shim.
      stream->end_believed_.store(true, std::memory_order_relaxed);
      stream->signal(kReadable);
      return false;
    }
    if (stream->probe_answered_) {
      log(LogLevel::info, "stream %s: the anchor ended without the engine's end mark",
          to_string(stream->tuple().local).c_str());
      // SO_KEEPALIVE or TCP_USER_TIMEOUT ended the anchor, or the peer's end of it was reset.
      int error = 0;
      socklen_t length = sizeof error;
      sys::getsockopt(stream->anchor(), SOL_SOCKET, SO_ERROR, &error, &length);
      stream->die(stream->anchor_failed_ && error != 0 ? error : ECONNRESET);
      return true;
    }
    if (now >= stream->probe_at_) {
      // Ask again, later and later: an answer is lost only if the peer's ring was full.
      stream->probe_wait_ *= 2;
      stream->probe_at_ = now + stream->probe_wait_;
      const ProbePayload probe{stream->id_, stream->generation_};
      stream->send_control(FragmentType::probe, &probe, sizeof probe);
      stream->connection()->endpoint().poke();
    }
    return false;
  });
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
  recv_lock().unlock();
}

}  // namespace sidestep::engine

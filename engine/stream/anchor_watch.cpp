#include "engine/stream/anchor_watch.hpp"

#include <sys/epoll.h>

#include <cerrno>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/connection.hpp"

namespace sidestep::engine {
namespace {

// Usually the end mark has arrived by then.
constexpr uint64_t kAskAfter = 20'000'000;
constexpr uint64_t kUnexplained = 5'000'000'000;

}  // namespace

void AnchorWatch::take(uint32_t events) noexcept {
  stream_.anchor_failed_ = stream_.anchor_failed_ || (events & EPOLLERR) != 0;
  if (stream_.sender_.has_replay()) stream_.sender_.defer(Sender::kReplay);
  // An end that came over the engine may be left to the anchor.
  if ((events & EPOLLRDHUP) != 0 && stream_.stay_down_.load(std::memory_order_relaxed))
    stream_.receiver_.defer(Receiver::kSettle);
  if ((events & EPOLLIN) != 0 && stream_.receiver_.engine_sends_)
    stream_.receiver_.defer(Receiver::kQuestionAnchor);
  // The program knows of an end that came over the engine: to a thread that waits for edges, a
  // second edge would mean something else. It does not know of what it still reads on the anchor.
  const bool dead = stream_.is_aborted();
  const bool known =
      stream_.receiver_.carrier() == Carrier::engine &&
      (dead || (stream_.receiver_.peer_fin_ && (events & (EPOLLHUP | EPOLLERR)) == 0));
  const bool writable = stream_.sender_.carrier() == Carrier::kernel || !(known || dead);
  const uint32_t news = (known ? 0 : kReadable) | (writable ? kWritable : 0);
  if (news != 0) stream_.signal(news);
}

bool AnchorWatch::suspect() noexcept {
  if (stream_.suspect_) return false;
  stream_.suspect_ = true;
  stream_.suspect_since_ = now_ns();
  stream_.probe_wait_ = kAskAfter;
  stream_.probe_at_ = now_ns() + kAskAfter;
  return true;
}

bool AnchorWatch::question_end() noexcept {
  if (!stream_.receiver_.doubts_end()) return false;
  stream_.receiver_.end_questioned_.store(true, std::memory_order_relaxed);
  return true;
}

bool AnchorWatch::is_settled(uint64_t now) noexcept {
  if (stream_.receiver_.peer_fin_ || stream_.is_aborted() || stream_.phase() != Phase::bound)
    return true;
  // The end of the anchor ends a direction that the kernel carries, and the kernel tells the
  // program. The other direction goes on, even over the engine (half close).
  // To the kernel, this side's shutdown() of reading looks like the peer's of writing.
  const bool ended_by_peer = !stream_.receiver_.read_shut_.load(std::memory_order_relaxed);
  const bool concerns_engine =
      (ended_by_peer && (stream_.receiver_.engine_sends_ || stream_.receiver_.doubts_end())) ||
      (stream_.anchor_failed_ && stream_.sender_.carrier() == Carrier::engine);
  if (!concerns_engine) {
    stream_.suspect_ = false;
    return true;
  }
  if (stream_.connection()->is_closed() && !stream_.failed_over_) {
    // The two ends are about to agree on how the stream goes on (recovery.hpp). A reset, or an end
    // that nobody explains, comes from a process that is gone. suspect_since_ may be later than
    // `now`.
    if (!stream_.anchor_failed_ && now < stream_.suspect_since_ + kUnexplained) return false;
    stream_.abort(ECONNRESET);
    return true;
  }
  if (stream_.probe_answered_ && stream_.receiver_.doubts_end()) {
    // The peer lives, and has not moved the direction, which ended where it was, past the shim.
    stream_.receiver_.end_believed_.store(true, std::memory_order_relaxed);
    stream_.signal(kReadable);
    return false;
  }
  if (stream_.probe_answered_) {
    log(LogLevel::info, "stream %s: the anchor ended without the engine's end mark",
        text_of(stream_.tuple().local).c_str());
    // SO_KEEPALIVE or TCP_USER_TIMEOUT ended the anchor, or the peer's end of it was reset.
    int error = 0;
    socklen_t length = sizeof error;
    sys::getsockopt(stream_.anchor(), SOL_SOCKET, SO_ERROR, &error, &length);
    stream_.abort(stream_.anchor_failed_ && error != 0 ? error : ECONNRESET);
    return true;
  }
  if (now >= stream_.probe_at_) {
    // Ask again, later and later: an answer is lost only if the peer's ring was full.
    stream_.probe_wait_ *= 2;
    stream_.probe_at_ = now + stream_.probe_wait_;
    const ProbePayload probe{stream_.id(), stream_.generation()};
    stream_.send_control(FragmentType::probe, &probe, sizeof probe);
    stream_.connection()->endpoint().poke();
  }
  return false;
}

}  // namespace sidestep::engine

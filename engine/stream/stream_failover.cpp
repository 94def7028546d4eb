#include "engine/stream/stream_failover.hpp"

#include <cerrno>

namespace sidestep::engine {

void StreamFailover::end(PeerProcess peer) noexcept {
  // The stream was asked to hold when it had sent nothing over the engine that could come back: the
  // peer may have gone before it heard the answer.
  if (stream_.sender_.awaits_return() && stream_.never_used_engine()) stream_.sender_.end_return(0);
  if (stream_.sender_.awaits_return()) {
    stream_.abort(ECONNRESET);
  } else if (stream_.phase() == Phase::kernel) {
    stream_.forget_engine();
  } else if (stream_.has_only_replay() && !stream_.failed_over_) {
    stream_.forget_engine();
    stream_.sender_.defer(Sender::kReplay);
    stream_.receiver_.defer(Receiver::kSettle);
  } else if (!stream_.failed_over_ && !stream_.is_aborted() && peer != PeerProcess::may_live &&
             stream_.has_all_of_gone_peer(peer == PeerProcess::left)) {
    stream_.go_on_alone(stream_.receiver_.peer_fin_, {});
  } else if (!stream_.failed_over_) {
    stream_.abort(ECONNRESET);
  }
}

}  // namespace sidestep::engine

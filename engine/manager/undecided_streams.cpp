#include "engine/manager/undecided_streams.hpp"

#include <mutex>
#include <optional>

#include "engine/base/wakeable.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {

UndecidedEnd UndecidedStreams::find(const Tuple& tuple) {
  uint32_t id = 0;
  uint32_t generation = 0;
  {
    const ReceiveLockGuard guard(node_.progress.recv_lock());
    const Stream* const stream = node_.streams.table().find(tuple);
    if (stream == nullptr) return {};
    id = stream->id();
    generation = stream->generation();
  }
  return find(id, generation);
}

UndecidedEnd UndecidedStreams::find(uint32_t id, uint32_t generation) {
  UndecidedEnd found;
  const ReceiveLockGuard guard(node_.progress.recv_lock());
  Stream* const stream = node_.streams.table().find(id, generation);
  if (UndecidedStream::is_one(stream) && !UndecidedStream(*stream).keep_if_it_cannot_move())
    found = {id, generation, stream->anchor(), stream->is_accepted()};
  return found;
}

bool UndecidedStreams::has(uint32_t id, uint32_t generation) {
  const ReceiveLockGuard guard(node_.progress.recv_lock());
  return UndecidedStream::is_one(node_.streams.table().find(id, generation));
}

void UndecidedStreams::list_grown(uint64_t now) {
  const uint64_t soon = now + node_.jobs.soon();
  std::optional<YoungStreams::Young> one = node_.jobs.unlisted().take(now);
  if (!one) return;
  // If there is no directory yet, NodeStreams::use_directory() lists the streams.
  Directory* const directory = node_.streams.directory();
  const ReceiveLockGuard guard(node_.progress.recv_lock());
  for (; one; one = node_.jobs.unlisted().take(soon)) {
    Stream* const stream = node_.streams.table().find(one->stream, one->generation);
    if (directory != nullptr && UndecidedStream::is_one(stream))
      UndecidedStream(*stream).list(*directory);
  }
}

void UndecidedStreams::stay_on_kernel(uint32_t id, uint32_t generation, Reason reason,
                                      Until until) {
  const ReceiveLockGuard guard(node_.progress.recv_lock());
  Stream* const stream = node_.streams.table().find(id, generation);
  if (UndecidedStream::is_one(stream)) {
    UndecidedStream undecided(*stream);
    undecided.note(reason);
    if (!node_.streams.try_again_locked(*stream, until == Until::later))
      undecided.leave_to_kernel();
  }
}

void UndecidedStreams::bind(Connection& connection, const StreamPair& pair) {
  WakeBatch wake_ups_after_the_lock;
  {
    const std::lock_guard guard(node_.progress.recv_lock());
    Stream* const stream = node_.streams.table().find(pair.stream, pair.generation);
    // The other end was open when its node said yes. If this end is still open, it has been open
    // all the while, and nobody else could have these addresses and ports: the two are ends of one
    // connection.
    if (UndecidedStream::is_one(stream) && !connection.is_closed()) {
      UndecidedStream undecided(*stream);
      if (!undecided.keep_if_it_cannot_move())
        undecided.bind(connection, pair.peer_stream, pair.peer_generation);
    }
  }
  node_.progress.poll();  // sends the go that bind() has left to be sent
}

}  // namespace sidestep::engine

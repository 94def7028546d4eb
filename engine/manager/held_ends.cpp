#include "engine/manager/held_ends.hpp"

#include <mutex>

#include "engine/base/clock.hpp"
#include "engine/base/wakeable.hpp"
#include "engine/lifecycle/node_streams.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {

OwnerAnswer HeldEnds::look_up(const Tuple& tuple, uint16_t asker,
                              const control::RemoteAsker& remote_asker, uint32_t asker_generation,
                              const EndCounts& counts, EndOwner& owner,
                              const UndecidedEnd* proven) {
  if (asker == 0 && node_.has_both_ends(tuple)) return OwnerAnswer::no;
  WakeBatch wake_ups_after_the_lock;
  // A thread inside connect() has a connection that is not in the table yet. The count is read
  // before the table: a connection that gets there in between is found, or its thread was counted.
  // Pairs with the two changes of the count in connect(). If there is a directory, the asker looks
  // there once more.
  const bool connecting = node_.streams.directory() == nullptr &&
                          node_.streams.connecting.load(std::memory_order_seq_cst) != 0;
  uint32_t number = asker;
  if (asker == 0) {
    // A peer gets its number when it asks for something that is here. This is done outside the lock
    // because it may throw.
    bool here = false;
    {
      const std::lock_guard guard(node_.progress.recv_lock());
      here = UndecidedStream::is_one(node_.streams.table().find(tuple));
    }
    if (here)
      number =
          others_.meet(remote_asker.incarnation, remote_asker.nid, remote_asker.ip, tuple.local.ip);
  }
  Stream* stream = nullptr;
  OwnerAnswer answer = OwnerAnswer::no;
  {
    const std::lock_guard guard(node_.progress.recv_lock());
    // Look only once: a thread that opens a stream adds it at any time.
    stream = node_.streams.table().find(tuple);
    if (number != 0 && UndecidedStream::is_one(stream) &&
        !UndecidedStream(*stream).keep_if_it_cannot_move()) {
      // Two streams of the asker, or of two nodes, may take this for their other end: one of them
      // has lost its connection and does not know it yet.
      const uint64_t now = now_ns();
      UndecidedStream undecided(*stream);
      const bool is_free = undecided.may_be_claimed(number, asker_generation, now);
      const bool is_meant = proven == nullptr || (proven->stream == stream->id() &&
                                                  proven->generation == stream->generation());
      const int anchor = stream->anchor();
      if (!is_meant || !is_free || !is_open(stream->anchor_state())) {
        answer = OwnerAnswer::later;
      } else if (!may_fit(counts, anchor)) {
        answer = OwnerAnswer::unproven;
      } else {
        undecided.claim(number, asker_generation, now);
        owner = {node_.nid,
                 node_.nid,
                 node_.incarnation,
                 stream->id(),
                 stream->generation(),
                 counts_of(anchor, stream->is_accepted())};
        answer = OwnerAnswer::yes;
      }
    }
  }
  if (answer == OwnerAnswer::yes) node_.progress.attendance().expect_moves();
  if (answer == OwnerAnswer::unproven) proofs_.note_misfit();
  if (answer == OwnerAnswer::no && stream == nullptr && connecting) answer = OwnerAnswer::later;
  return answer;
}

void HeldEnds::answer(Link& link, const Received& received) {
  const auto question = received.message.as<control::WhoHas>();
  // A question on behalf of another host names the asker there.
  const bool is_for_host = question.asker.incarnation != 0;
  if (is_for_host ? !link.is_own : link.nid == 0) return;
  const uint16_t asker = is_for_host ? 0 : link.nid;
  const UndecidedEnd here = asker != 0 ? undecided_.find(question.tuple) : UndecidedEnd{};
  EndOwner owner;
  OwnerAnswer answer = OwnerAnswer::yes;
  if (here.anchor >= 0)
    answer = proofs_.check(link, {question.held_at, received.fds[0], question.path_port},
                           question.tuple.mirrored(), here.anchor);
  if (answer == OwnerAnswer::yes)
    answer = look_up(question.tuple, asker, question.asker, question.generation, question.counts,
                     owner, asker != 0 ? &here : nullptr);
  control::Owner reply;
  reply.query = question.query;
  reply.generation = question.generation;
  reply.incarnation = node_.incarnation;
  reply.answer = static_cast<uint32_t>(answer);
  reply.stream = owner.stream;
  reply.stream_generation = owner.generation;
  reply.counts = owner.counts;
  node_.progress.counters().queries_answered.add();
  proofs_.send(link, reply, answer == OwnerAnswer::yes ? here.anchor : -1,
               question.wants_token != 0);
  if (asker == 0 && owner.nid != 0) node_.device_for_others();  // the asker opens its own meanwhile
}

}  // namespace sidestep::engine

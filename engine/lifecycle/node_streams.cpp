#include "engine/lifecycle/node_streams.hpp"

#include <algorithm>
#include <mutex>
#include <new>

#include "engine/base/clock.hpp"
#include "engine/base/log.hpp"
#include "engine/base/wakeable.hpp"
#include "engine/control/directory.hpp"
#include "engine/control/manager_jobs.hpp"
#include "engine/progress/progress.hpp"
#include "engine/stream/closed_stream.hpp"
#include "engine/stream/stream_reopening.hpp"
#include "engine/stream/undecided.hpp"

namespace sidestep::engine {

Lanes& NodeStreams::recv_lock() noexcept {
  return progress_.recv_lock();
}

NodeCounters& NodeStreams::counters() noexcept {
  return progress_.counters();
}

Stream* NodeStreams::open(const Tuple& tuple, int anchor, bool accepted, bool in_use) noexcept {
  // relaxed: if this thread runs beside exit(), nobody can tell which was first.
  if (is_over_.load(std::memory_order_relaxed)) return nullptr;
  try {
    auto stream = std::make_unique<Stream>(
        Stream::Opening{*this, tuple, anchor, accepted, in_use, config_.window_size, now_ns()});
    if (!table_.insert(*stream, !accepted)) return nullptr;
    Stream* const opened = stream.release();  // the table has it
    if (!make_places()) {
      const std::lock_guard guard(recv_lock());
      free_locked(*opened);
      return nullptr;
    }
    if (config_.ask_after == 0)
      progress_.attendance().expect_moves();  // else when the stream is asked for
    if (may_lead_away(tuple)) jobs_.meet_other_hosts();
    // After the insertion: use_directory() finds the stream in the table, or it is listed here.
    if (config_.ask_after != 0) {
      if (!accepted) jobs_.list_later(opened->id(), opened->generation());
    } else if (Directory* const where = directory(); where != nullptr) {
      UndecidedStream(*opened).list(*where);
    }
    return opened;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool NodeStreams::make_places() noexcept {
  const size_t streams = table_.slots_used();
  // relaxed: places_ only grows, and the lists are looked at under their locks.
  if (streams <= places_.load(std::memory_order_relaxed)) return true;
  const size_t places = std::max<size_t>(64, 2 * streams);
  const std::lock_guard guard(recv_lock());
  try {
    progress_.deferred().reserve(places);
    for (auto* list : {&suspects_, &returning_}) list->reserve(places);
  } catch (const std::bad_alloc&) {
    return false;
  }
  places_.store(places, std::memory_order_relaxed);
  return true;
}

void NodeStreams::use_directory(Directory& directory) noexcept {
  directory_.store(&directory, std::memory_order_seq_cst);
  const ReceiveLockGuard guard(recv_lock());
  try {
    for (Stream* const stream : table_.all()) {
      if (UndecidedStream::is_one(stream)) UndecidedStream(*stream).list_anew(directory);
    }
  } catch (const std::bad_alloc&) {
    // Streams that are not listed are not found, and stay on the kernel.
  }
}

void NodeStreams::note_full_directory(Stream& stream) noexcept {
  UndecidedStream(stream).note(Reason::directory_full);
  counters().directory_full.add();
  jobs_.sweep();
}

void NodeStreams::ask_for_owner(const Stream& stream) noexcept {
  if (!stream.is_accepted() && (!may_lead_away(stream.tuple()) || jobs_.talks_to_other_hosts()))
    return;
  if (config_.ask_after == 0) {
    jobs_.query(stream.id(), stream.generation());
  } else {
    jobs_.query_later(stream.id(), stream.generation());
  }
}

void NodeStreams::expect_moves() noexcept {
  progress_.attendance().expect_moves();
}

void NodeStreams::watch_anchor(Stream& stream) noexcept {
  progress_.thread().watch_anchor(stream);
}

void NodeStreams::tell_of_entry(Stream& stream) noexcept {
  jobs_.tell(stream.id(), stream.generation());
}

void NodeStreams::look_for_waiters(Stream& stream) noexcept {
  jobs_.look_for_waiters(stream.id(), stream.generation());
}

void NodeStreams::keep_on_kernel(Stream& stream) noexcept {
  WakeBatch wake_ups_after_the_lock;
  const GuardUnlessStuck guard(recv_lock());
  if (guard) UndecidedStream(stream).keep_for_good();
}

void NodeStreams::count_closed(const Stream& stream) noexcept {
  const std::lock_guard guard(totals_lock_);
  try {
    closed_totals_.add(stream);
  } catch (const std::bad_alloc&) {
    // The totals lack one reason; nothing depends on them.
  }
}

bool NodeStreams::close_undecided(Stream& stream) noexcept {
  WakeBatch wake_ups_after_the_lock;
  const GuardUnlessStuck guard(recv_lock());
  if (!guard) return false;
  const bool undecided = stream.phase() == Phase::undecided && stream.connection() == nullptr;
  if (undecided) {
    count_closed(stream);
    free_locked(stream);
  }
  return undecided;
}

void NodeStreams::close(Stream& stream, int spare_anchor) noexcept {
  count_closed(stream);
  const ReceiveLockGuard guard(recv_lock());
  table_.forget_tuple(stream);
  // see_to_closed_locked() frees it when both ends have ended.
  if (!ClosedStream(stream).begin(spare_anchor)) free_locked(stream);
}

void NodeStreams::stream_ended(Stream& stream) noexcept {
  if (stream.is_closed()) retry_later(stream);
}

void NodeStreams::free_locked(Stream& stream) noexcept {
  UndecidedStream(stream).unlist();
  table_.erase(stream);
  progress_.deferred().forget(stream);
  forget_suspect_locked(stream);
  if (StreamReopening(stream).is_expected()) {
    std::erase(returning_, &stream);
    returning_count_.store(returning_.size(), std::memory_order_relaxed);
  }
  if (Connection* const connection = stream.connection(); connection != nullptr) {
    connection->remove_stream(stream);
    if (connection->is_closed()) progress_.connections().sweep();
  }
  delete &stream;
}

void NodeStreams::retry_later(Stream& stream) noexcept {
  progress_.deferred().add(stream);
}

void NodeStreams::see_to_closed_locked(Stream& stream, bool settled) noexcept {
  const ClosedStream::State state = ClosedStream(stream).look();
  if (state == ClosedStream::State::ended) {
    free_locked(stream);
  } else if (state == ClosedStream::State::in_hand || !settled) {
    retry_later(stream);
  }
}

void NodeStreams::count_switch_up(Stream& stream) noexcept {
  switches_up_.add();
  log(LogLevel::debug, "stream %s -> %s moved up after %llu bytes and %llu us",
      text_of(stream.tuple().local).c_str(), text_of(stream.tuple().remote).c_str(),
      static_cast<unsigned long long>(stream.sender().kernel_bytes()),
      static_cast<unsigned long long>((now_ns() - stream.opened_at()) / 1000));
}

void NodeStreams::count_switch_down(Stream& stream) noexcept {
  switches_down_.add();
  log(LogLevel::debug, "stream %s -> %s moved down (%s)", text_of(stream.tuple().local).c_str(),
      text_of(stream.tuple().remote).c_str(), text_of(stream.reason()));
}

StreamTotals NodeStreams::totals() {
  StreamTotals totals;
  {
    const std::lock_guard guard(totals_lock_);
    totals = closed_totals_;
  }
  const ReceiveLockGuard guard(recv_lock());
  for (const Stream* stream : open_locked()) totals.add(*stream);
  return totals;
}

std::vector<Stream*> NodeStreams::open_locked() {
  std::vector<Stream*> streams = table_.all();
  std::erase_if(streams, [](const Stream* stream) { return stream->is_closed(); });
  return streams;
}

}  // namespace sidestep::engine

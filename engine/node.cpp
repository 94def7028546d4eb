#include "engine/node.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "engine/base/engine_threads.hpp"
#include "engine/base/heap.hpp"
#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"
#include "engine/base/process_copy.hpp"
#include "engine/base/user_copy.hpp"
#include "engine/control/directory.hpp"
#include "engine/manager.hpp"
#include "engine/progress/alarm.hpp"
#include "engine/progress/patience.hpp"
#include "engine/progress/waiter.hpp"
#include "engine/progress_thread.hpp"

namespace sidestep::engine {
namespace {
Mutex g_start_lock;
std::atomic<Node*> g_node{nullptr};
bool g_failed = false;
enum Bar : int { kOpen, kBarred, kBarredForGood };
std::atomic<int> g_bar{kOpen};
}  // namespace

Node::Node(const config::Config& config) : config_(config) {}

Node* Node::running() noexcept {
  return g_node.load(std::memory_order_acquire);
}

bool Node::has_begun() noexcept {
  return g_start_lock.is_locked() || running() != nullptr;
}

void Node::bar(bool for_good) noexcept {
  if (for_good || g_bar.load(std::memory_order_relaxed) == kOpen)
    g_bar.store(for_good ? kBarredForGood : kBarred, std::memory_order_seq_cst);
}

void Node::unbar_in_child() noexcept {
  if (g_bar.load(std::memory_order_relaxed) == kBarred)
    g_bar.store(kOpen, std::memory_order_relaxed);
}

bool Node::is_barred() noexcept {
  // relaxed: if this call runs beside the one that bars, nobody can tell which was first.
  return g_bar.load(std::memory_order_relaxed) != kOpen;
}

bool Node::end_threads() noexcept {
  ask_engine_threads_to_end();
  progress_thread_->wake_to_end();
  manager_->wake();
  return await_end_of_engine_threads();
}

Node* Node::start(const config::Config& config) noexcept {
  if (is_barred()) return nullptr;
  if (Node* node = running()) return node;
  g_start_lock.lock();
  Node* node = running();
  if (node == nullptr && !g_failed && !is_barred()) {
    heap_keep_reserve();
    // Never destroyed: threads of the program may use it until the process ends.
    try {
      node = new Node(config);
    } catch (const std::exception&) {  // no memory
    }
    if (node != nullptr && node->start_parts()) {
      watch_for_copies();
      if (begin_to_answer_faults != nullptr) begin_to_answer_faults();
      g_node.store(node, std::memory_order_release);
    } else {
      g_failed = true;
      node = nullptr;
      // Give the descriptors to the program, unless a thread already uses them.
      if (engine_threads() == 0 && forget_idle_alarms()) private_fd_close_all();
      log(LogLevel::warn, "the engine could not start; every stream stays on the kernel");
    }
  }
  g_start_lock.unlock();
  return node;
}

void Node::forget_after_fork(bool closes_descriptors) noexcept {
  // Leave the object and its memory alone: threads that no longer exist may hold its locks.
  g_node.store(nullptr, std::memory_order_relaxed);
  g_failed = false;
  NoThreadStarts::forget_after_fork();
  g_start_lock.reset_after_fork();
  if (closes_descriptors) private_fd_close_all();
  Sleeper::forget_after_fork();
  EventSleeper::forget_after_fork();
  Devices::forget_after_fork();
  Directory::forget_after_fork();
}

bool Node::start_parts() noexcept {
  try {
    if (!open_first_alarm()) {
      log(LogLevel::warn, "no descriptors for threads that sleep");
      return false;
    }
    manager_ = std::make_unique<Manager>(*this);
    nid_ = manager_->claim_nid(static_cast<uint16_t>(config_.nid));
    if (nid_ == 0) return false;
    posting_.set_nid(nid_);
    progress_thread_ = std::make_unique<ProgressThread>(*this);
    return progress_thread_->start() && manager_->start();
  } catch (const std::exception& error) {
    log(LogLevel::error, "starting the engine: %s", error.what());
    return false;
  }
}

// ---- streams

Stream* Node::open_stream(const Tuple& tuple, int anchor, bool accepted, bool in_use) noexcept {
  // relaxed: if this thread runs beside exit(), nobody can tell which was first.
  if (is_over_.load(std::memory_order_relaxed) || is_barred()) return nullptr;
  try {
    auto stream = std::make_unique<Stream>();
    stream->services_ = this;
    stream->window_ = window_size();
    stream->credit_step_.store(window_size() / 4, std::memory_order_relaxed);
    stream->tuple_ = tuple;
    stream->opened_at_ = now_ns();
    stream->accepted_ = accepted;
    stream->rx_used_.store(in_use, std::memory_order_relaxed);
    stream->tx_used_.store(in_use, std::memory_order_relaxed);
    stream->anchor_.store(anchor, std::memory_order_relaxed);
    stream->set_reason(accepted ? Reason::asking : Reason::not_asked);
    if (!streams_.insert(*stream, !accepted)) return nullptr;
    Stream* const opened = stream.release();  // the table has it
    if (!make_places()) {
      const std::lock_guard guard(recv_lock_);
      free_stream_locked(*opened);
      return nullptr;
    }
    if (config_.ask_after == 0) attendance_.expect_moves();  // else when the stream is asked for
    if (may_lead_away(tuple)) manager_->meet_other_hosts();
    // After the insertion: use_directory() finds the stream in the table, or it is listed here.
    if (config_.ask_after != 0) {
      if (!accepted) manager_->list_later(opened->id(), opened->generation());
    } else if (Directory* const where = directory(); where != nullptr) {
      opened->list(*where);
    }
    return opened;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool Node::make_places() noexcept {
  const size_t streams = streams_.slots_used();
  // relaxed: places_ only grows, and the lists are looked at under their locks.
  if (streams <= places_.load(std::memory_order_relaxed)) return true;
  const size_t places = std::max<size_t>(64, 2 * streams);
  const std::lock_guard for_progress(recv_lock_);
  const std::lock_guard for_retries(retry_lock_);
  try {
    for (auto* list : {&retries_, &retrying_, &set_aside_, &suspects_, &returning_})
      list->reserve(places);
  } catch (const std::bad_alloc&) {
    return false;
  }
  places_.store(places, std::memory_order_relaxed);
  return true;
}

void Node::use_directory(Directory& directory) noexcept {
  directory_.store(&directory, std::memory_order_seq_cst);
  WakeBatch wake_ups_after_the_lock;
  const std::lock_guard guard(recv_lock_);
  try {
    for (Stream* const stream : streams_.all()) {
      if (stream->closed_ || stream->phase() != Phase::undecided) continue;
      stream->unlist();
      stream->list(directory);
    }
  } catch (const std::bad_alloc&) {
    // Streams that are not listed are not found, and stay on the kernel.
  }
}

void Node::note_full_directory(Stream& stream) noexcept {
  stream.set_reason(Reason::directory_full);
  counters().directory_full.add();
  manager_->sweep();
}

void Node::ask_for_owner(const Stream& stream) noexcept {
  if (!stream.accepted_ && (!may_lead_away(stream.tuple()) || manager_->talks_to_other_hosts()))
    return;
  if (config_.ask_after == 0) {
    manager_->query(stream.id(), stream.generation());
  } else {
    manager_->query_later(stream.id(), stream.generation());
  }
}

void Node::expect_moves() noexcept {
  attendance_.expect_moves();
}

void Node::watch_anchor(Stream& stream) noexcept {
  progress_thread_->watch_anchor(stream);
}

void Node::tell_of_entry(Stream& stream) noexcept {
  manager_->tell(stream.id(), stream.generation());
}

void Node::look_for_waiters(Stream& stream) noexcept {
  manager_->look_for_waiters(stream.id(), stream.generation());
}

void Node::keep_on_kernel(Stream& stream) noexcept {
  WakeBatch wake_ups_after_the_lock;
  if (!recv_lock_.lock_unless_stuck()) return;
  stream.for_good_.store(true, std::memory_order_seq_cst);  // even if it might start over
  if (stream.phase() == Phase::undecided) stream.set_phase(Phase::kernel);
  recv_lock_.unlock();
}

void Node::count_closed(const Stream& stream) noexcept {
  totals_lock_.lock();
  try {
    closed_totals_.add(stream);
  } catch (const std::bad_alloc&) {
    // The totals lack one reason; nothing depends on them.
  }
  totals_lock_.unlock();
}

bool Node::close_undecided(Stream& stream) noexcept {
  WakeBatch wake_ups_after_the_lock;
  if (!recv_lock_.lock_unless_stuck()) return false;
  const bool undecided = stream.phase() == Phase::undecided && stream.connection() == nullptr;
  if (undecided) {
    count_closed(stream);
    free_stream_locked(stream);
  }
  recv_lock_.unlock();
  return undecided;
}

void Node::close_stream(Stream& stream, int spare_anchor) noexcept {
  count_closed(stream);
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  streams_.forget_tuple(stream);
  stream.unlist();
  stream.anchor_.store(spare_anchor, std::memory_order_relaxed);
  stream.closed_ = true;
  if (stream.connection() == nullptr) {
    free_stream_locked(stream);
    recv_lock_.unlock();
    return;
  }
  stream.queue_.clear();
  stream.answer_hold();
  stream.defer(Stream::kClose);  // run_retries_locked() frees it when both ends have ended
  recv_lock_.unlock();
}

void Node::stream_ended(Stream& stream) noexcept {
  if (stream.closed_) retry_later(stream);
}

void Node::free_stream_locked(Stream& stream) noexcept {
  stream.unlist();
  streams_.erase(stream);
  retry_lock_.lock();
  if (stream.retry_listed_) {
    std::erase(retries_, &stream);
    std::erase(set_aside_, &stream);
    retry_count_.store(retries_.size(), std::memory_order_relaxed);
    set_aside_count_.store(set_aside_.size(), std::memory_order_relaxed);
  }
  retry_lock_.unlock();
  forget_suspect_locked(stream);
  if (stream.return_.expected) {
    returning_.erase(std::remove(returning_.begin(), returning_.end(), &stream), returning_.end());
    returning_count_.store(returning_.size(), std::memory_order_relaxed);
  }
  if (Connection* const connection = stream.connection(); connection != nullptr) {
    connection->remove_stream(stream);
    if (connection->is_dead()) connections_.sweep();
  }
  delete &stream;
}

void Node::retry_later(Stream& stream) noexcept {
  retry_lock_.lock();
  if (!stream.retry_listed_) {
    stream.retry_listed_ = true;
    retries_.push_back(&stream);
    retry_count_.store(retries_.size(), std::memory_order_relaxed);
  }
  retry_lock_.unlock();
}

template <typename Excused>
bool Node::has_deferred_but(Excused excused) noexcept {
  const std::lock_guard guard(retry_lock_);
  return std::any_of(retries_.begin(), retries_.end(), [&](const Stream* stream) {
    Connection* const connection = stream->connection();
    return connection == nullptr || !excused(*connection);
  });
}

void Node::run_retries_locked(bool by_lane) noexcept {
  const bool has_all = !by_lane || recv_lock_.open().size() == 1;
  // If this fails, a thread with another lane does it.
  if (!retrying_lock_.try_lock()) return;
  retry_lock_.lock();
  retrying_.swap(retries_);
  retry_count_.store(0, std::memory_order_relaxed);
  if (has_all) {
    retrying_.insert(retrying_.end(), set_aside_.begin(), set_aside_.end());
    set_aside_.clear();
    set_aside_count_.store(0, std::memory_order_relaxed);
  }
  for (Stream* stream : retrying_) stream->retry_listed_ = false;
  retry_lock_.unlock();
  for (Stream* stream : retrying_) {
    const bool settled = stream->run_deferred();
    const bool is_lost = stream->is_lost_.load(std::memory_order_relaxed);
    if (!has_all && (stream->closed_ || is_lost)) {
      retry_lock_.lock();
      if (!stream->retry_listed_) {
        stream->retry_listed_ = true;
        set_aside_.push_back(stream);
        set_aside_count_.store(set_aside_.size(), std::memory_order_relaxed);
      }
      retry_lock_.unlock();
      continue;
    }
    if (is_lost) stream->die(ECONNRESET);
    if (stream->closed_) {
      retry_closed_locked(*stream, settled);
    } else if (!settled) {
      retry_later(*stream);
    }
  }
  retrying_.clear();
  retrying_lock_.unlock();
}

void Node::retry_closed_locked(Stream& stream, bool settled) noexcept {
  // Nobody reads the stream any more, except a thread that still has it in hand for a moment.
  if (!stream.recv_lock_.try_lock()) return retry_later(stream);
  stream.queue_.clear();
  stream.recv_lock_.unlock();
  if (stream.fin_sent() && stream.anchor() >= 0) {
    private_fd_close(stream.anchor());
    stream.anchor_.store(-1, std::memory_order_relaxed);
  }
  // True if nothing that concerns the stream can come any more. A stream that goes on alone hears
  // nothing any more, and a peer that was told of a reset or of a close on the kernel owes nothing.
  const bool ended = stream.fin_sent() &&  // its acquire: the last two were set before
                     (stream.peer_fin_ || stream.landed_ || stream.lets_go_ ||
                      stream.reset_sent_.load(std::memory_order_relaxed));
  if (ended || stream.is_dead()) {
    if (stream.anchor() >= 0) private_fd_close(stream.anchor());
    free_stream_locked(stream);
  } else if (!settled) {
    retry_later(stream);
  }
}

void Node::take_up_set_aside() noexcept {
  if (set_aside_count_.load(std::memory_order_relaxed) == 0) return;
  WakeBatch wake_ups_after_the_lock;
  if (!recv_lock_.try_lock()) return;
  run_retries_locked(false);
  recv_lock_.unlock();
}

void Node::count_switch_up(Stream& stream) noexcept {
  switches_up_.add();
  log(LogLevel::debug, "stream %s -> %s: up after %llu bytes and %llu us",
      to_string(stream.tuple().local).c_str(), to_string(stream.tuple().remote).c_str(),
      static_cast<unsigned long long>(stream.tx_kernel()),
      static_cast<unsigned long long>((now_ns() - stream.opened_at_) / 1000));
}

void Node::count_switch_down(Stream& stream) noexcept {
  switches_down_.add();
  log(LogLevel::debug, "stream %s -> %s: down (%s)", to_string(stream.tuple().local).c_str(),
      to_string(stream.tuple().remote).c_str(), text_of(stream.reason()));
}

StreamTotals Node::totals() {
  StreamTotals totals;
  {
    const std::lock_guard guard(totals_lock_);
    totals = closed_totals_;
  }
  WakeBatch wake_ups_after_the_lock;
  const std::lock_guard guard(recv_lock_);
  for (const Stream* stream : open_streams_locked()) totals.add(*stream);
  return totals;
}

std::vector<Stream*> Node::open_streams_locked() {
  std::vector<Stream*> streams = streams_.all();
  std::erase_if(streams, [](const Stream* stream) { return stream->closed_; });
  return streams;
}

// ---- connections

Device* Node::device_for(DeviceKind kind) noexcept {
  // Streams that move may need a second descriptor in reserve in order to end.
  if (kind == DeviceKind::none || !progress_thread_->open() ||
      !private_fd_make_reserve(first_alarm(), kMostInReserve))
    return nullptr;
  quota_.open();
  bool added = false;
  Device* const device = devices_.get(kind, now_ns(), added);
  if (!added) return device;
  open_more_alarms();
  progress_thread_->watch_device(*device);
  return device;
}

bool Node::has_room(const Device& device, Connection*& oldest) noexcept {
  // Nothing is under way on a connection that has been idle for this long. This matters because a
  // stream that ended a moment ago, with bytes under way, could not go on over its anchor.
  constexpr uint64_t kIdle = 100'000'000;
  const uint64_t now = now_ns();
  oldest = nullptr;
  uint32_t live = 0;
  recv_lock_.lock();
  for (const auto& connection : connections_.all()) {
    if (&connection->device() != &device || connection->is_dead()) continue;
    ++live;
    const bool idle = connection->uses() == connection->uses_seen &&
                      now >= connection->used_at + kIdle &&  // which may be after `now`
                      connection->orb().posted() == connection->orb().back();
    if (idle && (oldest == nullptr || connection->used_at < oldest->used_at))
      oldest = connection.get();
  }
  recv_lock_.unlock();
  return live < device.max_connections();
}

void Node::add_connection(std::unique_ptr<Connection> connection) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  connection->used_at = now_ns();
  recv_lock_.open_up_to(connection->lane() + 1);
  connection->device().add(connection->endpoint());
  ++connection->device().lanes[connection->lane()].endpoints;
  recv_lock_.set_used(connection->lane(), true);
  connections_.put(std::move(connection));
  recv_lock_.unlock();
  counters().connections_opened.add();
}

void Node::finish(bool ended) noexcept {
  // Over shared memory everything is out at once. An adapter may have to send a packet again, and
  // stops doing so when the process ends; the kernel, which lives on, would try for minutes.
  constexpr uint64_t kUnflushed = 5'000'000'000;
  constexpr uint64_t kDeferred = 500'000'000;  // marks that wait for an answer
  const uint64_t start = now_ns();
  Patience patience(kUnflushed);
  const auto is_vain = [&](Connection& connection) {
    return patience.is_vain(connection, Patience::Awaits::engine);
  };
  bool tells = false;  // whether the manager has to tell the peers that nothing is under way
  bool said_all = false;
  for (;;) {
    poll();
    // Only try: a program that ends in a signal handler may hold the lock itself.
    const bool looked = recv_lock_.try_lock();
    bool flushed = looked;
    if (looked) {
      for (const auto& connection : connections_.all()) {
        tells = tells || !connection->endpoint().is_ordered();
        connection->endpoint().use_reserve();
        flushed = (connection->is_flushed() || is_vain(*connection)) && flushed;
      }
      said_all = flushed && !has_deferred_but(is_vain);
      if (said_all && ended) {
        is_over_.store(true, std::memory_order_relaxed);
        for (const auto& connection : connections_.all()) connection->endpoint().leave();
      }
      recv_lock_.unlock();
    }
    if (said_all || now_ns() - start > (looked && !flushed ? kUnflushed : kDeferred)) break;
    if (!patience.pause()) break;
  }
  if (tells) manager_->leave(ended && said_all);
}

// ---- anchors

// Usually the end mark has arrived by then.
constexpr uint64_t kAskAfter = 20'000'000;
constexpr uint64_t kUnexplained = 5'000'000'000;

void Node::anchor_event(uint32_t id, uint32_t generation, uint32_t events) noexcept {
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  Stream* stream = streams_.find(id, generation);
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
        progress_thread_->unwatch_anchor(stream->anchor());
        stream->unlock_recv();
      }
    }
  }
  recv_lock_.unlock();
}

void Node::suspect_locked(Stream& stream) noexcept {
  if (stream.suspect_) return;
  stream.suspect_ = true;
  stream.suspect_since_ = now_ns();
  stream.probe_wait_ = kAskAfter;
  stream.probe_at_ = now_ns() + kAskAfter;
  suspects_.push_back(&stream);
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void Node::forget_suspect_locked(Stream& stream) noexcept {
  stream.suspect_ = false;
  suspects_.erase(std::remove(suspects_.begin(), suspects_.end(), &stream), suspects_.end());
  suspect_count_.store(suspects_.size(), std::memory_order_relaxed);
}

void Node::question_end(Stream& stream) noexcept {
  recv_lock_.lock();
  if (stream.doubts_end()) {
    stream.end_questioned_.store(true, std::memory_order_relaxed);
    suspect_locked(stream);
  }
  recv_lock_.unlock();
}

void Node::check_suspects(uint64_t now) noexcept {
  // A peer sends its end mark before it ends the anchor, but the kernel may be faster, and the peer
  // may be slow to post: time says nothing. So this asks the peer over the engine; its answer comes
  // after the mark, if there is one. A peer that is gone is the connection's business.
  WakeBatch wake_ups_after_the_lock;
  recv_lock_.lock();
  for (Lane& lane : recv_lock_.open()) drain_locked(lane);
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
  recv_lock_.unlock();
}

}  // namespace sidestep::engine

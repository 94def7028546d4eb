// A stream as a whole: how it is bound to a connection, told to leave it, and ends.
#include <cerrno>
#include <new>

#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/control/directory.hpp"
#include "engine/stream/stream.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

Stream::Stream(const Opening& opening) noexcept
    : services_(&opening.services),
      tuple_(opening.tuple),
      anchor_(opening.anchor),
      reason_(opening.accepted ? Reason::asking : Reason::not_asked),
      accepted_(opening.accepted),
      opened_at_(opening.now),
      tx_used_(opening.in_use),
      rx_used_(opening.in_use),
      window_(opening.window),
      credit_step_(opening.window / 4) {}

void Stream::bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept {
  peer_stream_ = peer_stream;
  peer_generation_ = peer_generation;
  connection_.store(&connection, std::memory_order_relaxed);
  shares_host_.store(connection.endpoint().is_ordered(), std::memory_order_relaxed);
  told_join_ = false;
  tx_at_bind_ = tx_engine();
  rx_at_bind_ = rx_arrived_.load(std::memory_order_relaxed);
  return_.bound_at = now_ns();
  return_.refusals = 0;
  connection.add_stream(*this);
  set_reason(Reason::none);
  log(LogLevel::debug, "stream %s: bound after %llu us", to_string(tuple_.local).c_str(),
      static_cast<unsigned long long>((now_ns() - opened_at_) / 1000));
  peer_buffers_.store({}, std::memory_order_relaxed);
  own_buffers_.store({}, std::memory_order_relaxed);  // the peer knows of none
  set_phase(Phase::bound);
  if (wanted_use_.load(std::memory_order_seq_cst) != 0 && !cleared_.load(std::memory_order_seq_cst))
    ask_for_clearance();
  services_->watch_anchor(*this);
  signal(kMoved | kReadable | kWritable);
  defer(kGo | kBuffers);
}

void Stream::list(Directory& directory) noexcept {
  Directory* none = nullptr;
  // relaxed: no other information about the stream is passed on through this.
  if (accepted_ || !listed_in_.compare_exchange_strong(none, &directory, std::memory_order_relaxed))
    return;
  if (!directory.enter(Directory::End::connecting, tuple_, services_->nid())) {
    services_->note_full_directory(*this);
    listed_in_.store(nullptr, std::memory_order_relaxed);
  }
  std::array<uint16_t, Directory::kWindow> waiting;
  if (directory.find(Directory::End::accepting, tuple_, waiting) != 0)
    services_->tell_of_entry(*this);
  // A thread that has decided the stream meanwhile may have taken it out before it was there, and
  // does not look again. seq_cst, with the fence in enter(): pairs with set_phase().
  if (phase_.load(std::memory_order_seq_cst) != Phase::undecided) {
    listed_in_.store(nullptr, std::memory_order_relaxed);
    directory.leave(Directory::End::connecting, tuple_, services_->nid());
  }
}

void Stream::unlist_now() noexcept {
  if (Directory* const directory = listed_in_.exchange(nullptr, std::memory_order_relaxed))
    directory->leave(Directory::End::connecting, tuple_, services_->nid());
}

TcpState Stream::anchor_state() const noexcept {
  // If the anchor is still the same, it was not closed meanwhile: it is replaced first.
  for (;;) {
    const int fd = anchor();
    const TcpState state = tcp_state(fd);
    if (fd == anchor()) return state;
  }
}

bool Stream::doubts_end() const noexcept {
  // acquire: a thread that sees the stream dead sees its error.
  return is_bound() && !dead_.load(std::memory_order_acquire) && door_is_open() && !peer_fin_ &&
         !end_believed_.load(std::memory_order_relaxed) && !connection()->endpoint().is_ordered();
}

void Stream::die(int error) noexcept {
  if (is_dead()) return;
  if (awaits_hand_back()) {
    // Bytes that this end has sent are lost with the peer. Whoever else has the peer's descriptor
    // must not take the end of the anchor for the end of the stream.
    const linger now{1, 0};
    sys::setsockopt(anchor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  // Set before a reader finds the mark. seq_cst pairs with error_told(): whichever of the two comes
  // last makes sure that the error is not told again.
  error_.store(error, std::memory_order_seq_cst);
  if (error_told_.load(std::memory_order_seq_cst)) take_error();
  if (!peer_fin_)
    queue_.push({nullptr, nullptr, nullptr, static_cast<uint64_t>(error), 0, SegmentKind::error});
  // release pairs with the acquire in is_dead() and doubts_end(): a thread that sees it sees the
  // above.
  dead_.store(true, std::memory_order_release);
  if (!is_detached()) defer(kShut);
  signal(kReadable | kWritable);
}

void Stream::request_down(Reason reason, bool hold) noexcept {
  ask_peer_down(reason, hold);
  go_down();
}

void Stream::go_down() noexcept {
  if (!is_bound()) return;
  defer(kSwitchDown);
  run_deferred();
}

void Stream::ask_peer_down(Reason reason, bool hold) noexcept {
  if (reason != Reason::none) {
    stay_down_.store(true, std::memory_order_relaxed);
    for_good_.store(true, std::memory_order_seq_cst);  // pairs with start_over()
    const Phase phase = phase_.load(std::memory_order_seq_cst);
    if (phase != Phase::kernel) set_reason(reason);
    if (phase == Phase::undecided) services_->keep_on_kernel(*this);
    // Once this thread has held both locks, any thread that looked at stay_down_ before it was set
    // has done what follows from that.
    if (send_lock_.lock_unless_stuck()) unlock_send();
    if (recv_lock_.lock_unless_stuck()) unlock_recv();
  }
  if (!is_bound()) return;
  // Between hosts the connection may fail in the middle of a hold, and nobody would know what was
  // sent.
  if (hold && shares_host()) wants_hold_.store(true, std::memory_order_relaxed);
  services_->expect_moves();
  defer(kAskDown);
  run_deferred();
}

void Stream::reset() noexcept {
  fin_sent_.store(false, std::memory_order_relaxed);
  defer(kReset);
  run_deferred();
}

Stream* Stream::make_detached(const Tuple& tuple, int anchor, bool torn) noexcept {
  auto* stream = new (std::nothrow) Stream;
  if (stream == nullptr) return nullptr;
  stream->tuple_ = tuple;
  stream->set_anchor(anchor);
  stream->set_phase(Phase::kernel);
  if (torn) stream->die(ECONNRESET);
  return stream;
}

bool Stream::is_down() noexcept {
  const ReceiveSideGuard guard(*this);
  const RxHead head = rx_head_locked();
  return is_dead() ||
         (head.kind == RxHead::Kind::kernel && !head.switch_pending && is_down_locked());
}

}  // namespace sidestep::engine

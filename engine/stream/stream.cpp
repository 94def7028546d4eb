// A stream as a whole: how it is bound to a connection, told to leave it, and ends.
#include "engine/stream/stream.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <new>

#include "engine/base/log.hpp"
#include "engine/connection/connection.hpp"
#include "engine/control/directory.hpp"
#include "engine/stream/stream_services.hpp"

namespace sidestep::engine {

Stream::Stream(const Opening& opening) noexcept
    : services_(&opening.services),
      tuple_(opening.tuple),
      anchor_(opening.anchor),
      reason_(opening.accepted ? Reason::asking : Reason::not_asked),
      accepted_(opening.accepted),
      opened_at_(opening.now),
      clearance_(*this),
      keep_alive_(*this),
      sender_(*this, opening.in_use),
      receiver_(*this, opening.in_use, opening.window) {}

Stream::Stream() noexcept
    : clearance_(*this), keep_alive_(*this), sender_(*this, true), receiver_(*this, true, 0) {}

void Stream::bind(Connection& connection, uint32_t peer_stream, uint32_t peer_generation) noexcept {
  peer_stream_ = peer_stream;
  peer_generation_ = peer_generation;
  connection_.store(&connection, std::memory_order_relaxed);
  shares_host_.store(connection.endpoint().is_ordered(), std::memory_order_relaxed);
  receiver_.told_join_ = false;
  sender_.engine_at_bind_ = sender_.engine_bytes();
  receiver_.arrived_at_bind_ = receiver_.arrived_.load(std::memory_order_relaxed);
  reopening_.bound_at = now_ns();
  reopening_.refusals = 0;
  connection.add_stream(*this);
  set_reason(Reason::none);
  log(LogLevel::debug, "stream %s was bound after %llu us", text_of(tuple_.local).c_str(),
      static_cast<unsigned long long>((now_ns() - opened_at_) / 1000));
  receiver_.peer_buffers_.store({}, std::memory_order_relaxed);
  receiver_.own_buffers_.store({}, std::memory_order_relaxed);  // the peer knows of none
  set_phase(Phase::bound);
  clearance_.note_bound();
  services_->watch_anchor(*this);
  signal(kMoved | kReadable | kWritable);
  receiver_.defer(Receiver::kGo | Receiver::kBuffers);
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
  // A thread that has decided about the stream meanwhile may have taken it out of the directory
  // before it was entered, and does not look again. seq_cst, with the fence in enter(): pairs with
  // set_phase().
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

void Stream::abort(int error) noexcept {
  if (is_aborted()) return;
  if (sender_.awaits_return()) {
    // Bytes that this end has sent are lost with the peer. Whoever else has the peer's descriptor
    // must not take the end of the anchor for the end of the stream.
    const linger now{1, 0};
    sys::setsockopt(anchor(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  }
  errors_.set(error);  // before a reader finds the mark
  if (!receiver_.peer_fin_)
    receiver_.queue_.push(
        {nullptr, nullptr, nullptr, static_cast<uint64_t>(error), 0, SegmentKind::error});
  // release pairs with the acquire in is_aborted() and doubts_end(): a thread that sees it sees the
  // above.
  aborted_.store(true, std::memory_order_release);
  if (!is_detached()) sender_.defer(Sender::kShut);
  signal(kReadable | kWritable);
}

void Stream::request_down(Reason reason, bool hold) noexcept {
  ask_peer_down(reason, hold);
  go_down();
}

void Stream::go_down() noexcept {
  if (!is_bound()) return;
  sender_.defer(Sender::kSwitchDown);
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
    if (sender_.lock_.lock_unless_stuck()) sender_.unlock();
    if (receiver_.lock_.lock_unless_stuck()) receiver_.unlock();
  }
  if (!is_bound()) return;
  // Between hosts the connection may fail in the middle of a hold, and nobody would know what was
  // sent.
  if (hold && shares_host()) receiver_.wants_hold_.store(true, std::memory_order_relaxed);
  services_->expect_moves();
  receiver_.defer(Receiver::kAskDown);
  run_deferred();
}

void Stream::reset() noexcept {
  sender_.set_end_told(false);
  sender_.defer(Sender::kReset);
  run_deferred();
}

Stream* Stream::make_detached(const Tuple& tuple, int anchor, bool torn) noexcept {
  auto* stream = new (std::nothrow) Stream;
  if (stream == nullptr) return nullptr;
  stream->tuple_ = tuple;
  stream->set_anchor(anchor);
  stream->set_phase(Phase::kernel);
  if (torn) stream->abort(ECONNRESET);
  return stream;
}

bool Stream::is_down() noexcept {
  const SideGuard guard(receiver_);
  const RxHead head = receiver_.head_locked();
  return is_aborted() ||
         (head.kind == RxHead::Kind::kernel && !head.switch_pending && is_down_locked());
}

bool Stream::send_control(FragmentType type, const void* payload, uint32_t length) noexcept {
  return connection()->send_control(peer_stream_, peer_generation_, type, payload, length);
}

bool Stream::send_value(FragmentType type, uint64_t value) noexcept {
  return send_control(type, &value, sizeof value);
}

bool Stream::run_deferred() noexcept {
  // The phase comes first: its acquire makes visible what bind() has set.
  if (phase() == Phase::undecided || connection() == nullptr) return true;
  const bool has_sent = sender_.run_own_deferred();
  return receiver_.run_own_deferred() && has_sent;
}

}  // namespace sidestep::engine

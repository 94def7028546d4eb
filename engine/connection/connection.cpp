#include "engine/connection/connection.hpp"

#include <algorithm>
#include <cstring>

#include "engine/base/clock.hpp"
#include "engine/base/sys.hpp"
#include "engine/connection/posting.hpp"

namespace sidestep::engine {

uint32_t Connection::payload_limit(uint32_t request, uint32_t post_batch) noexcept {
  constexpr auto kLongest = static_cast<uint32_t>(fragment_size(kMaxFragmentPayload));
  if (post_batch < request) return kMaxFragmentPayload;
  const uint32_t count = (request + kLongest - 1) / kLongest;
  constexpr auto kGrain = static_cast<uint32_t>(kOrbGrain);
  const uint32_t size = request / count / kGrain * kGrain;
  return std::min(kMaxFragmentPayload, size - static_cast<uint32_t>(sizeof(FragmentHeader)));
}

Connection::Connection(Posting& posting, const PeerName& peer, Device& device,
                       std::unique_ptr<Endpoint> endpoint)
    : posting_(posting),
      peer_(peer),
      device_(device),
      endpoint_(std::move(endpoint)),
      max_request_(endpoint_->max_request()),
      post_batch_(endpoint_->post_batch()),
      max_payload_(payload_limit(max_request_, post_batch_)),
      has_doorbell_(endpoint_->has_doorbell()),
      wakes_readers_(endpoint_->wakes_readers()),
      orb_(endpoint_->orb_memory()) {
  endpoint_->user = this;
}

bool Connection::is_own() const noexcept {
  return peer_.number == posting_.nid();
}

uint64_t Connection::reserve(uint32_t payload, bool control) noexcept {
  const uint64_t position = orb_.reserve(payload, control);
  if (position != Orb::kNoSpace) return position;
  orb_.set_front(endpoint_->completed());
  return orb_.reserve(payload, control);
}

bool Connection::has_room() noexcept {
  if (orb_.free_for_data() >= kMaxFragmentPayload) return true;
  orb_.set_front(endpoint_->completed());
  return orb_.free_for_data() >= kMaxFragmentPayload;
}

bool Connection::send_control(uint32_t stream, uint32_t generation, FragmentType type,
                              const void* payload, uint32_t length) noexcept {
  const uint64_t position = reserve(length, true);
  if (position == Orb::kNoSpace) {
    want_space();
    return false;
  }
  std::byte* at = orb_.at(position);
  const FragmentHeader header{stream, length, generation, static_cast<uint8_t>(type), {}};
  std::memcpy(at, &header, sizeof header);
  if (length != 0) std::memcpy(at + sizeof header, payload, length);
  orb_.commit(position, length);
  kick();
  return true;
}

void Connection::note_receivers(const Orb::Ready& ready, Receivers& receivers) const noexcept {
  for (uint64_t at = ready.position; at < ready.position + ready.length;) {
    FragmentHeader header;
    std::memcpy(&header, orb_.at(at), sizeof header);
    at += fragment_size(header.length);
    if (receivers.count != 0 && receivers.streams[receivers.count - 1] == header.stream) continue;
    receivers.all = receivers.count == Receivers::kRoom;
    if (receivers.all) return;
    receivers.streams[receivers.count++] = header.stream;
  }
}

void Connection::ring(const Receivers& receivers) noexcept {
  if (!has_doorbell_) return;
  if (receivers.all) {
    endpoint_->wake_all_readers();
  } else if (receivers.count != 0) {
    endpoint_->wake_readers({receivers.streams.data(), receivers.count});
  }
  endpoint_->ring_if_parked();
}

void Connection::post_locked(Receivers& receivers) noexcept {
  constexpr size_t kChain = 8;
  SendRequest chain[kChain];
  uint32_t pieces[kChain];
  uint64_t position = orb_.posted();
  // After asking to be told of room, this looks at the queue once more: nobody tells of room that
  // came just before the request.
  for (bool asked = false;;) {
    // room_ is usually known from before: room grows by itself, and shrinks by what is posted here.
    if (room_ == 0) {
      if (!orb_.has_ready(position)) break;
      room_ = endpoint_->send_room();
    }
    if (room_ == 0) {
      if (asked) break;
      asked = true;
      want_space();
      continue;
    }
    const size_t most = std::min(kChain, room_);
    size_t count = 0;
    bool last = false;
    for (uint64_t next = position; count < most && !last; ++count) {
      const Orb::Ready ready = orb_.peek(next, max_request_);
      if (ready.length == 0) break;
      chain[count] = {ready.position, ready.length, make_immediate(posting_.nid(), 0)};
      pieces[count] = ready.fragments;
      // Before it is posted: after that it may be overwritten.
      if (wakes_readers_ && !receivers.all) note_receivers(ready, receivers);
      next += ready.length;
      last = ready.last;
    }
    if (count == 0) break;
    const size_t posted = endpoint_->post_send({chain, count});
    room_ = posted == count ? room_ - posted : 0;
    for (size_t i = 0; i < posted; ++i) {
      position += chain[i].length;
      fragments.add_exclusive(pieces[i]);
    }
    work_requests.add_exclusive(posted);
    orb_.set_posted(position);
    if (posted == 0) break;  // a broken endpoint takes nothing more
  }
  // relaxed: whoever sets it asks for a post afterwards.
  if (!endpoint_->owes_window.load(std::memory_order_relaxed)) return;
  endpoint_->post_window(make_immediate(posting_.nid(), 0));
  room_ = 0;  // post_window() takes some of it
  // The queue was full. The peer may wait for nothing but this window, and this side may have
  // nothing else to post.
  if (endpoint_->owes_window.load(std::memory_order_relaxed)) want_space();
}

bool Connection::try_post() noexcept {
  if (!post_lock_.try_lock()) return false;
  Receivers receivers;
  post_locked(receivers);
  post_lock_.unlock();
  // unlock() is a full barrier: what was posted is visible before this thread reads the peer's
  // `armed`, and whoever pushed into the write interest ring before kick() reads that ring sees the
  // lock free.
  ring(receivers);
  return true;
}

void Connection::request_post() noexcept {
  if (interest.fetch_add(1, std::memory_order_seq_cst) == 0) posting_.request(number_);
}

void Connection::kick() noexcept {
  if (!try_post()) {
    // Another thread is posting. It looks at the ring after it has unlocked, so either it sees this
    // entry or this thread sees the lock free.
    request_post();
    if (post_lock_.is_locked()) return;
  }
  posting_.post_requested();
}

void Connection::wait_until_posted_slowly(uint64_t end) noexcept {
  // An adapter works on its own, like another thread: what it has taken is not there yet either.
  if (!endpoint_->is_ordered()) return;
  // As long as a thread may go without a processor. A thread that never comes back has been stopped
  // by a debugger, or has ended inside the ring; the next to post then takes this along.
  constexpr uint64_t kLongest = 2'000'000'000;
  const auto posted = [&] { return orb_.posted() >= end || is_closed() || endpoint_->is_broken(); };
  uint64_t limit = 0;
  const auto in_vain = [&] {
    const uint64_t now = now_ns();
    if (limit == 0) limit = now + kLongest;
    return now > limit;
  };
  for (unsigned round = 0; !posted(); ++round) {
    if (!post_lock_.lock_unless([&] { return posted() || in_vain(); })) return;
    Receivers receivers;
    post_locked(receivers);
    const bool full = orb_.has_ready(orb_.posted()) && endpoint_->send_room() == 0;
    post_lock_.unlock();
    ring(receivers);
    if (posted() || full || in_vain()) return;
    // The thread that will fill the gap is running, or waits for a processor.
    if (round < 64) {
      cpu_relax();
    } else if (round < 128) {
      sys::sched_yield();
    } else {
      const timespec moment{0, 50'000};
      sys::ppoll(nullptr, 0, &moment, nullptr);
    }
  }
}

void Connection::want_space() noexcept {
  if (is_closed()) return;
  if (!starved_.exchange(true, std::memory_order_seq_cst)) posting_.count_starved(1);
  endpoint_->want_completions(true);
  endpoint_->ring_if_parked();
}

void Connection::forget_space() noexcept {
  if (starved_.exchange(false, std::memory_order_seq_cst)) posting_.count_starved(-1);
  endpoint_->want_completions(false);
}

bool Connection::relieve() noexcept {
  orb_.set_front(endpoint_->completed());
  // A quarter of the ring: waking a sender for every few kilobytes would cost more than it gains.
  const uint64_t used = orb_.back() - orb_.front();
  if (used > orb_.size() - orb_.size() / 4 && !endpoint_->is_broken()) {
    kick();
    return false;
  }
  forget_space();
  // After the request is withdrawn: posting asks again if the device's queue is still too full. A
  // kick and not a mere try, because the thread that is posting now may be past its last look.
  kick();
  return true;
}

bool Connection::is_flushed() noexcept {
  if (is_closed()) return !awaits_report;
  if (orb_.posted() == orb_.back()) return endpoint_->is_flushed();
  kick();
  return false;
}

void Connection::add_stream(BoundStream& stream) noexcept {
  stream.previous_ = nullptr;
  stream.next_ = first_stream_;
  if (first_stream_ != nullptr) first_stream_->previous_ = &stream;
  first_stream_ = &stream;
  ++stream_count_;
}

void Connection::remove_stream(BoundStream& stream) noexcept {
  BoundStream* const next = stream.next_;
  BoundStream* const previous = stream.previous_;
  if (previous == nullptr && first_stream_ != &stream) return;  // not in the list
  (previous != nullptr ? previous->next_ : first_stream_) = next;
  if (next != nullptr) next->previous_ = previous;
  stream.next_ = stream.previous_ = nullptr;
  --stream_count_;
}

}  // namespace sidestep::engine

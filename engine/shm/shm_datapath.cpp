// The hot path of the same-host device: no allocation, no lock but release_lock_ (which covers a
// few stores), and two system calls, which wake a peer that sleeps: its doorbell, or the futex of
// a thread that naps.
#include <algorithm>

#include "engine/shm/aliased.hpp"
#include "engine/shm/shm_device.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::shm {

size_t ShmEndpoint::send_room() noexcept {
  // relaxed: whoever gives up the reserve looks at the ring again afterwards.
  const uint64_t usable = kDescriptors - reserve_.load(std::memory_order_relaxed);
  if (posted_count_ - reusable_count_ >= usable) {
    // acquire pairs with the peer's release: it has copied what it needs out of the descriptors.
    const uint64_t count = incoming_.control().released_count.load(std::memory_order_acquire);
    if (count > posted_count_ || count < reusable_count_) {
      fail("an impossible count of released descriptors");
      return 0;
    }
    reusable_count_ = count;
  }
  return usable - std::min(usable, posted_count_ - reusable_count_);
}

size_t ShmEndpoint::post_send(std::span<const SendRequest> chain) noexcept {
  Descriptor* ring = outgoing_.descriptors();
  size_t taken = 0;
  for (const SendRequest& request : chain) {
    if (send_room() == 0) break;
    Descriptor& descriptor = ring[posted_count_ % kDescriptors];
    descriptor.length.store(request.length, std::memory_order_relaxed);
    descriptor.immediate.store(request.immediate, std::memory_order_relaxed);
    ++posted_count_;
    // relaxed: only compared with what the peer reports as released, which it learned from here.
    posted_position_.store(request.position + request.length, std::memory_order_relaxed);
    // release pairs with the acquire in poll(): descriptor and ORB bytes are complete.
    aliased_release(&posted_edge_);
    descriptor.sequence.store(posted_count_, std::memory_order_release);
    ++taken;
  }
  __builtin_prefetch(&ring[(posted_count_ + 16) % kDescriptors], 1);
  return taken;
}

void ShmEndpoint::ring_if_parked() noexcept {
  // relaxed: the caller's full barrier orders this load after the published descriptors.
  const uint32_t epoch = incoming_.control().armed.load(std::memory_order_relaxed);
  if ((epoch & 1U) == 0 || rung_epoch_.load(std::memory_order_relaxed) == epoch) return;
  if (rung_epoch_.exchange(epoch, std::memory_order_relaxed) == epoch) return;
  // A system call: the peer sleeps, and only the kernel can wake it. Once per sleep.
  const uint64_t one = 1;
  sys::write(doorbell_->get(), &one, sizeof one);
}

Nap ShmEndpoint::nap(uint32_t stream) noexcept {
  std::atomic<uint32_t>& word = incoming_.nap(stream).rung;
  // seq_cst for both, in this order, so that a ring for this sleep changes the value read here. The
  // addition is the full barrier between this and the look at what has come.
  const uint32_t value = word.load(std::memory_order_seq_cst);
  outgoing_.nap(stream).slept.fetch_add(1, std::memory_order_seq_cst);
  return {&word, value};
}

bool ShmEndpoint::has_rung(uint32_t stream, uint32_t value) const noexcept {
  // relaxed: the caller's full barrier orders this load after what the peer has posted.
  return incoming_.nap(stream).rung.load(std::memory_order_relaxed) != value;
}

void ShmEndpoint::wake_readers(std::span<const uint32_t> streams) noexcept {
  for (const uint32_t stream : streams) {
    // relaxed: the caller's full barrier orders this load after the published descriptors.
    const uint32_t slept = incoming_.nap(stream).slept.load(std::memory_order_relaxed);
    std::atomic<uint32_t>& rung_for = rung_naps_[stream % kNaps];
    if (rung_for.load(std::memory_order_relaxed) == slept) continue;
    std::atomic<uint32_t>& word = outgoing_.nap(stream).rung;
    // seq_cst pairs with the load in nap(): whoever reads the new value finds what was posted.
    word.fetch_add(1, std::memory_order_seq_cst);
    sys::call(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
    // Last: a thread that loses its processor before it has woken anybody keeps no other thread
    // from doing so.
    rung_for.store(slept, std::memory_order_relaxed);
  }
}

void ShmEndpoint::wake_all_readers() noexcept {
  for (uint32_t any = 0; any < kNaps; ++any) wake_readers({&any, 1});
}

uint64_t ShmEndpoint::completed() noexcept {
  // acquire pairs with publish_released() at the peer: it no longer reads what lies before.
  const uint64_t position = incoming_.control().released_position.load(std::memory_order_acquire);
  aliased_acquire(&released_edge_);
  if (position > posted_position_.load(std::memory_order_relaxed)) {
    fail("an impossible position of released bytes");
    return 0;
  }
  return position;
}

void ShmEndpoint::want_completions(bool wanted) noexcept {
  outgoing_.control().want_completions.store(wanted ? 1 : 0, std::memory_order_seq_cst);
}

bool ShmEndpoint::peer_wants_release() const noexcept {
  return incoming_.control().want_completions.load(std::memory_order_relaxed) != 0;
}

uint64_t ShmEndpoint::unreleased() const noexcept {
  return polled_position_.load(std::memory_order_relaxed) -
         released_position_.load(std::memory_order_relaxed);
}

bool ShmEndpoint::is_held_up(unsigned quarters) const noexcept {
  // Pieces are given back in order. All relaxed: one look more or less does no harm.
  const uint64_t first = outgoing_.control().released_count.load(std::memory_order_relaxed);
  const uint64_t held = held_descriptors();
  if (held < kDescriptors / 4 * quarters) return false;
  constexpr uint64_t kSamples = 16;
  uint64_t unread = 0;
  for (uint64_t i = 0; i < kSamples; ++i) {
    const RecvBuffer& buffer = buffers_[(first + held * i / kSamples) % kDescriptors];
    unread += buffer.references.load(std::memory_order_relaxed) != 0 ? 1 : 0;
  }
  return unread < kSamples / 4;
}

bool ShmEndpoint::may_have_received() const noexcept {
  // Both relaxed: the poll that follows looks again.
  const uint64_t count = polled_count_.load(std::memory_order_relaxed);
  const Descriptor& next = incoming_.descriptors()[count % kDescriptors];
  return next.sequence.load(std::memory_order_relaxed) == count + 1;
}

size_t ShmEndpoint::poll(std::span<RecvCompletion> completions) noexcept {
  uint64_t count = polled_count_.load(std::memory_order_relaxed);
  uint64_t position = polled_position_.load(std::memory_order_relaxed);
  const uint64_t mask = incoming_.orb().size() - 1;
  const Descriptor* ring = incoming_.descriptors();
  size_t found = 0;
  size_t pieces = 0;
  while (found < completions.size()) {
    const Descriptor& descriptor = ring[count % kDescriptors];
    if (descriptor.sequence.load(std::memory_order_acquire) != count + 1) break;
    aliased_acquire(&posted_edge_);
    // The peer can still write the descriptor: each field is read once and checked before use.
    const uint32_t length = descriptor.length.load(std::memory_order_relaxed);
    const uint32_t immediate = descriptor.immediate.load(std::memory_order_relaxed);
    if (length > kMaxWorkRequest || length % kOrbGrain != 0 || length > mask + 1) {
      fail("a descriptor of impossible length");
      break;
    }
    RecvBuffer& buffer = buffers_[count % kDescriptors];
    // A buffer comes around only after the peer saw it released; a peer that does not wait for that
    // is broken.
    if (buffer.references.load(std::memory_order_acquire) != 0) {
      fail("more descriptors than the ring holds");
      break;
    }
    buffer.length = length;
    buffer.references.store(length != 0 ? RecvBuffer::kPolled : 0, std::memory_order_relaxed);
    pieces += length != 0 ? 1 : 0;
    completions[found++] = {this,
                            incoming_.orb().data() + (position & mask),
                            length,
                            immediate,
                            length != 0 ? &buffer : nullptr,
                            false,
                            nullptr};
    ++count;
    position += length;
  }
  if (found != 0) {
    polled_position_.store(position, std::memory_order_relaxed);
    // release pairs with the acquire in publish_released(): the buffers' lengths are set.
    polled_count_.store(count, std::memory_order_release);
    // relaxed: only a count; the reference counts order what it guards.
    outstanding_.fetch_add(pieces, std::memory_order_relaxed);
    if (pieces != found) publish_released();
  } else if (outstanding_.load(std::memory_order_relaxed) != 0 && peer_wants_release()) {
    publish_released();  // the peer asked after the last release had been kept back
  }
  return found;
}

void ShmEndpoint::release(RecvBuffer&) noexcept {
  publish_released();
}

void ShmEndpoint::publish_released() noexcept {
  // The thread that gets the lock gives back everything that is free. The others leave it to that
  // thread, whose second look after unlock() sees their reference counts (full barriers on both
  // sides).
  for (;;) {
    if (!release_lock_.try_lock()) {
      // The holder may have lost its processor. Wait for it before the peer runs out of room: the
      // lock is held for a few stores only.
      if (held_descriptors() < kDescriptors / 2) return;
      const uint64_t limit = now_ns() + 1'000'000'000;  // a handler may have interrupted the holder
      if (!release_lock_.lock_unless([&] { return now_ns() > limit; })) return;
    }
    const uint64_t polled = polled_count_.load(std::memory_order_acquire);
    uint64_t count = released_count_;
    uint64_t position = released_position_.load(std::memory_order_relaxed);
    while (count != polled) {
      RecvBuffer& buffer = buffers_[count % kDescriptors];
      if (buffer.references.load(std::memory_order_acquire) != 0) break;
      position += buffer.length;
      ++count;
    }
    const bool moved = count != released_count_;
    if (moved) {
      released_count_ = count;
      released_position_.store(position, std::memory_order_relaxed);
      // release: the sender overwrites these bytes once it sees the new values. The count goes
      // first: a sender that has ring space but no descriptor must not wait for the next release.
      aliased_release(&released_edge_);
      outgoing_.control().released_count.store(count, std::memory_order_release);
      outgoing_.control().released_position.store(position, std::memory_order_release);
    }
    release_lock_.unlock();
    // unlock() is the full barrier between publishing and reading the peer's wish. It pairs with
    // the one between want_completions() and completed() at the peer.
    if (moved && peer_wants_release()) ring_if_parked();
    const uint64_t now_polled = polled_count_.load(std::memory_order_acquire);
    if (count == now_polled ||
        buffers_[count % kDescriptors].references.load(std::memory_order_acquire) != 0)
      return;
  }
}

void ShmEndpoint::leave() noexcept {
  // release pairs with peer_has_left(): whoever sees it finds all that was posted.
  outgoing_.control().left.store(1, std::memory_order_release);
}

bool ShmEndpoint::peer_has_left() const noexcept {
  return incoming_.control().left.load(std::memory_order_acquire) == 1;
}

int ShmEndpoint::peer_cpu() const noexcept {
  return incoming_.control().cpu.load(std::memory_order_relaxed);
}

void ShmEndpoint::publish_cpu(int cpu) noexcept {
  std::atomic<int32_t>& mine = outgoing_.control().cpu;
  // The line is in the peer's cache, so write it only when the value changes.
  if (mine.load(std::memory_order_relaxed) != cpu) mine.store(cpu, std::memory_order_relaxed);
}

uint64_t ShmEndpoint::peer_crowded_until() const noexcept {
  return incoming_.control().crowded_until.load(std::memory_order_relaxed);
}

void ShmEndpoint::publish_crowded_until(uint64_t until) noexcept {
  std::atomic<uint64_t>& mine = outgoing_.control().crowded_until;
  if (mine.load(std::memory_order_relaxed) != until) mine.store(until, std::memory_order_relaxed);
}

size_t ShmDevice::poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept {
  constexpr uint32_t kColdEvery = 32;
  constexpr uint32_t kAgedEvery = 4096;
  constexpr size_t kFew = 4;  // looking at this many costs less than sorting them
  PollingSet& set = sets_[lane];
  Lane& state = lanes[lane];
  size_t found = 0;
  ++set.polls;
  const size_t all = set.endpoints.size();
  bool looks_at_all = all <= kFew || set.polls % kColdEvery == 0;
  // Exchanged: a request that comes meanwhile is seen either here, with what its sender knows, or
  // by the next poll.
  if (state.want_all.load(std::memory_order_relaxed) &&
      state.want_all.exchange(false, std::memory_order_acq_rel)) [[unlikely]]
    looks_at_all = true;
  const size_t count = looks_at_all ? all : set.hot;
  bool found_cold = false;
  ShmEndpoint* cut_short = nullptr;
  for (size_t i = 0; i < count && found < completions.size(); ++i) {
    if (++set.next >= count) set.next = 0;
    ShmEndpoint& endpoint = *set.endpoints[set.next];
    if (endpoint.is_broken()) continue;
    const uint64_t before = endpoint.polled_count_.load(std::memory_order_relaxed);
    const size_t received = endpoint.poll(completions.subspan(found));
    found += received;
    found_cold = found_cold || (received != 0 && set.next >= set.hot);
    // Only now and then: it takes many descriptors to hold a peer up.
    constexpr uint64_t kEvery = kDescriptors / 16;
    if (before / kEvery != (before + received) / kEvery && endpoint.is_held_up(1))
      state.held_up = true;
    if (found == completions.size() && i != 0) cut_short = &endpoint;
  }
  const bool ages = all > kFew && set.polls % kAgedEvery == 0;
  if (found_cold || ages) [[unlikely]]
    sort(set, ages);
  // The endpoint that was cut short is the first of the next poll: see polls_to_drain().
  if (cut_short != nullptr) {
    const auto at = std::find(set.endpoints.begin(), set.endpoints.end(), cut_short);
    set.next = static_cast<size_t>(at - set.endpoints.begin()) - 1;
  }
  state.found_all = looks_at_all && found < completions.size();
  return found;
}

size_t ShmDevice::polls_to_drain(uint32_t lane) const noexcept {
  // At least every other poll has one endpoint to itself.
  constexpr size_t kOfOne = 2 * (kDescriptors / kLeastPolled);
  return 1 + sets_[lane].endpoints.size() * kOfOne;
}

}  // namespace sidestep::engine::shm

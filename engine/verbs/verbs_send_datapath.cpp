// The hot path of the verbs device, the part that sends: work requests, their completions, and the
// windows that are told to peers. It does not allocate. It takes no lock beyond those that the
// caller holds, except that it tries send_lock_ for completions. Whether it makes system calls is
// up to the provider: an adapter is written to directly, Soft-RoCE is not.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine/verbs/compact_form.hpp"
#include "engine/verbs/verbs_device.hpp"

namespace sidestep::engine::verbs {

uint32_t VerbsEndpoint::places() const noexcept {
  const uint64_t under_way =
      posted_.load(std::memory_order_relaxed) - completed_.load(std::memory_order_acquire);
  return under_way < kQueue ? static_cast<uint32_t>(kQueue - under_way) : 0;
}

uint32_t VerbsEndpoint::window() const noexcept {
  // relaxed: these counts only grow, and nothing is read on the strength of them.
  const uint32_t windowed = windowed_.load(std::memory_order_relaxed);
  const uint32_t unconfirmed = windowed - confirmed_.load(std::memory_order_relaxed);
  return std::min(peer_window_.load(std::memory_order_relaxed) - windowed,
                  kUnconfirmed - unconfirmed);
}

size_t VerbsEndpoint::send_room() noexcept {
  if (is_broken()) return 0;
  if (places() == 0) device_.poll_sends();
  return std::min(places(), window());
}

bool VerbsEndpoint::post(ibv_send_wr& first, uint32_t& posted) noexcept {
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pair_, &first, &refused);
  posted = 0;
  for (const ibv_send_wr* request = &first; request != refused && request != nullptr;
       request = request->next)
    ++posted;
  if (error == 0) return true;
  fail("a work request was refused");
  return false;
}

Trailer VerbsEndpoint::next_trailer() noexcept {
  // The bytes are loaded first: what arrives between the two loads is confirmed again.
  const uint64_t bytes = received_bytes_.load(std::memory_order_relaxed);
  const Trailer trailer{sequence_++, received_.load(std::memory_order_relaxed), 0};
  confirmed_received_.store(trailer.received, std::memory_order_relaxed);
  confirmed_received_bytes_.store(bytes, std::memory_order_relaxed);
  return trailer;
}

std::span<std::byte, sizeof(Trailer)> VerbsEndpoint::trailer_place(uint64_t number) noexcept {
  return trailers_.bytes().subspan(number % kPlaces * sizeof(Trailer)).first<sizeof(Trailer)>();
}

ibv_sge VerbsEndpoint::write_trailer(uint64_t number, const std::byte* payload,
                                     uint32_t length) noexcept {
  Trailer trailer = next_trailer();
  const TrailerPiece piece{payload, length};
  trailer.check = trailer_check({&piece, 1}, trailer, hashed_);
  const auto place = trailer_place(number);
  std::memcpy(place.data(), &trailer, sizeof trailer);
  return {reinterpret_cast<uint64_t>(place.data()), sizeof trailer, trailers_.lkey()};
}

bool VerbsEndpoint::describe_compact(ibv_send_wr& request, uint64_t number, uint64_t offset,
                                     uint32_t length) noexcept {
  if (length > fragment_size(kMaxCompactPayload)) return false;
  // The ring is mapped twice, so the fragment is contiguous even where the ring ends. The adapter
  // knows one mapping only.
  const std::byte* const fragment = ring_.bytes().data() + offset;
  FragmentHeader header;
  std::memcpy(&header, fragment, sizeof header);
  if (!has_compact_form(header, length) || offset + length > ring_.bytes().size()) return false;
  const std::byte* const payload = fragment + sizeof header;
  const auto end =
      write_compact_end(trailer_place(number), header, payload, next_trailer(), hashed_);
  request.sg_list[0] = {reinterpret_cast<uint64_t>(payload), header.length, ring_.lkey()};
  request.sg_list[1] = {reinterpret_cast<uint64_t>(end.data()), static_cast<uint32_t>(end.size()),
                        trailers_.lkey()};
  request.num_sge = 2;
  if (header.length + end.size() <= inline_size_) request.send_flags = IBV_SEND_INLINE;
  return true;
}

void VerbsEndpoint::describe(ibv_send_wr& request, uint64_t number, uint64_t offset,
                             uint32_t length) noexcept {
  const std::span<std::byte> ring = ring_.bytes();
  const auto front = static_cast<uint32_t>(std::min<uint64_t>(length, ring.size() - offset));
  request.sg_list[request.num_sge++] = {reinterpret_cast<uint64_t>(ring.data() + offset), front,
                                        ring_.lkey()};
  if (front < length)
    request.sg_list[request.num_sge++] = {reinterpret_cast<uint64_t>(ring.data()), length - front,
                                          ring_.lkey()};
  // The ring is mapped twice, so the bytes are contiguous for the hash.
  request.sg_list[request.num_sge++] = write_trailer(number, ring.data() + offset, length);
  if (length + sizeof(Trailer) <= inline_size_) request.send_flags = IBV_SEND_INLINE;
}

void VerbsEndpoint::ask_completion(ibv_send_wr& request, uint64_t bytes) noexcept {
  // One completion stands for all work requests before it. Completions are rare enough to save
  // work, and frequent enough that neither the queue nor the ring is ever full of work whose end
  // nobody reports.
  ++unsignalled_;
  unsignalled_bytes_ += bytes;
  if (unsignalled_ < kQueue / 8 && unsignalled_bytes_ < ring_.bytes().size() / 8) return;
  request.send_flags |= IBV_SEND_SIGNALED;
  unsignalled_ = 0;
  unsignalled_bytes_ = 0;
}

size_t VerbsEndpoint::post_send(std::span<const SendRequest> chain) noexcept {
  const size_t count = is_broken() ? 0 : std::min(chain.size(), kChain);
  if (count == 0) return 0;
  const uint64_t mask = ring_.bytes().size() - 1;
  const uint32_t granted = granted_.load(std::memory_order_relaxed);
  const uint32_t windowed = windowed_.load(std::memory_order_relaxed);
  uint64_t number = posted_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i, ++number) {
    const SendRequest& request = chain[i];
    const uint64_t offset = request.position & mask;
    ibv_send_wr& wr = requests_[i];
    wr.wr_id = number;
    wr.next = nullptr;
    wr.sg_list = pieces_ + kSendPieces * i;
    wr.num_sge = 0;
    wr.send_flags = 0;
    if (!describe_compact(wr, number, offset, request.length))
      describe(wr, number, offset, request.length);
    wr.imm_data = htonl(request.immediate | (granted & 0xffffU));
    ask_completion(wr, request.length);
    posted_position_ = request.position + request.length;
    ends_[number % kPlaces].store(posted_position_, std::memory_order_relaxed);
    payload_ends_[(windowed + i) % kUnconfirmed].store(posted_position_, std::memory_order_relaxed);
    if (i != 0) requests_[i - 1].next = &wr;
  }
  // Stored before they are posted, because the peer may confirm them before this thread goes on.
  // release pairs with the acquire in on_confirmed(). If fewer are posted, the connection has
  // failed.
  windowed_.store(windowed + static_cast<uint32_t>(count), std::memory_order_release);
  uint32_t posted = 0;
  post(requests_[0], posted);
  posted_.store(posted_.load(std::memory_order_relaxed) + posted, std::memory_order_relaxed);
  if (posted != 0) announced_.store(granted, std::memory_order_relaxed);
  return posted;
}

void VerbsEndpoint::post_window(uint32_t immediate) noexcept {
  // A thread that owes something after this exchange sets the flag again; seq_cst orders the
  // exchange before the loads.
  if (!owes_window.exchange(false, std::memory_order_seq_cst) || is_broken()) return;
  const uint32_t granted = granted_.load(std::memory_order_relaxed);
  const bool poked = poked_.exchange(false, std::memory_order_relaxed);
  const bool confirms = owes_confirmation();
  if (granted == announced_.load(std::memory_order_relaxed) && !confirms && !poked) return;
  const uint64_t number = posted_.load(std::memory_order_relaxed);
  if (number - completed_.load(std::memory_order_acquire) >= kPlaces) {
    device_.poll_sends();
    if (number - completed_.load(std::memory_order_acquire) >= kPlaces) {
      if (poked) poked_.store(true, std::memory_order_relaxed);
      owes_window.store(true, std::memory_order_relaxed);  // with the next post
      return;
    }
  }
  ibv_send_wr wr{};
  ibv_sge trailer{};
  wr.wr_id = number;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htonl(immediate | (granted & 0xffffU));
  if (confirms) {
    trailer = write_trailer(number, nullptr, 0);
    wr.sg_list = &trailer;
    wr.num_sge = 1;
    if (sizeof(Trailer) <= inline_size_) wr.send_flags = IBV_SEND_INLINE;
  }
  // A poke asks for a completion, which tells what becomes of it and of all before it.
  if (poked) unsignalled_ = kQueue;
  ask_completion(wr, 0);
  ends_[number % kPlaces].store(posted_position_, std::memory_order_relaxed);
  uint32_t posted = 0;
  if (!post(wr, posted)) return;
  posted_.store(number + posted, std::memory_order_relaxed);
  announced_.store(granted, std::memory_order_relaxed);
}

void VerbsEndpoint::poke() noexcept {
  // An empty work request needs no window. If nobody acknowledges it, the adapter reports that.
  poked_.store(true, std::memory_order_relaxed);
  if (!owes_window.exchange(true, std::memory_order_seq_cst)) user->request_post();
}

void VerbsEndpoint::on_sent(uint64_t number) noexcept {
  const uint64_t end = ends_[number % kPlaces].load(std::memory_order_relaxed);
  // release pairs with the acquire in places() and completed(): the adapter is done with the bytes
  // and with the place in ends_.
  completed_position_.store(end, std::memory_order_release);
  completed_.store(number + 1, std::memory_order_release);
}

void VerbsEndpoint::ask_about_all() noexcept {
  // The last work requests need not have asked for a completion. A poke posts one that does.
  if (flush_at_.load(std::memory_order_relaxed) > completed_.load(std::memory_order_relaxed))
    return;
  flush_at_.store(posted_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  poke();
}

bool VerbsEndpoint::is_flushed() noexcept {
  device_.poll_sends();
  if (completed_.load(std::memory_order_acquire) == posted_.load(std::memory_order_relaxed))
    return true;
  ask_about_all();
  return false;
}

bool VerbsEndpoint::has_arrived(uint64_t position) noexcept {
  device_.poll_sends();
  if (completed_position_.load(std::memory_order_acquire) >= position) return true;
  ask_about_all();
  return false;
}

uint64_t VerbsEndpoint::completed() noexcept {
  device_.poll_sends();
  // Up to there the adapter no longer reads the ring, and the peer's engine has the bytes.
  return std::min(completed_position_.load(std::memory_order_acquire),
                  confirmed_position_.load(std::memory_order_acquire));
}

void VerbsEndpoint::watch(uint64_t now) noexcept {
  // Longer than all retries take. Soft-RoCE has been seen neither to go on nor to fail after an
  // outage.
  constexpr uint64_t kAskAfter = 10'000'000'000;
  constexpr uint64_t kStalled = 30'000'000'000;
  const uint64_t completed = completed_.load(std::memory_order_relaxed);
  const bool idle = completed == posted_.load(std::memory_order_relaxed);
  if (idle || completed != watched_ || watched_since_ == 0) {
    watched_ = completed;
    watched_since_ = now;
  } else if (now - watched_since_ >= kStalled) {
    fail("nothing has been acknowledged for 30 s");
  } else if (now - watched_since_ >= kAskAfter) {
    ask_about_all();  // the last work requests need not have asked for a completion
  }
}

void VerbsEndpoint::want_completions(bool wanted) noexcept {
  // seq_cst pairs with arm(), see there.
  if (wants_completions_.exchange(wanted, std::memory_order_seq_cst) == wanted) return;
  device_.wanting_.fetch_add(wanted ? 1 : -1, std::memory_order_seq_cst);
  if (wanted && device_.is_armed()) device_.arm();
}

void VerbsDevice::poll_sends() noexcept {
  // The lock holder polls for all.
  if (!send_lock_.try_lock()) return;
  const std::lock_guard guard(send_lock_, std::adopt_lock);
  constexpr int kBatch = 16;
  ibv_wc done[kBatch];
  int count = 0;
  do {
    count = ibv_poll_cq(sends_, kBatch, done);
    for (int i = 0; i < count; ++i) {
      VerbsEndpoint* const endpoint = find(done[i].qp_num);
      if (endpoint == nullptr) continue;  // its queue pair is gone
      if (done[i].status == IBV_WC_SUCCESS) {
        endpoint->on_sent(done[i].wr_id);
      } else {
        endpoint->fail(ibv_.ibv_wc_status_str(done[i].status));
      }
    }
  } while (count == kBatch);
}

}  // namespace sidestep::engine::verbs

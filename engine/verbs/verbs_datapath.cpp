// The hot path of the verbs device. It does not allocate. It takes no lock beyond those that the
// caller holds, except that it tries send_lock_ for completions of sends. Whether it makes system
// calls is up to the provider: an adapter is written to directly, Soft-RoCE is not.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "engine/verbs/brief.hpp"
#include "engine/verbs/verbs_device.hpp"

namespace sidestep::engine::verbs {

// ---- sending

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

bool VerbsEndpoint::describe_brief(ibv_send_wr& request, uint64_t number, uint64_t offset,
                                   uint32_t length) noexcept {
  if (length > fragment_size(kMaxBriefPayload)) return false;
  // The ring is mapped twice, so the fragment is contiguous even where the ring ends. The adapter
  // knows one mapping only.
  const std::byte* const fragment = ring_.bytes().data() + offset;
  FragmentHeader header;
  std::memcpy(&header, fragment, sizeof header);
  if (!has_brief_form(header, length) || offset + length > ring_.bytes().size()) return false;
  const std::byte* const payload = fragment + sizeof header;
  const auto end = write_brief_end(trailer_place(number), header, payload, next_trailer(), hashed_);
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
    if (!describe_brief(wr, number, offset, request.length))
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

// ---- receiving

void VerbsEndpoint::on_window(uint32_t immediate) noexcept {
  const uint32_t before = peer_window_.load(std::memory_order_relaxed);
  const auto more = static_cast<uint16_t>(immediate - before);
  // Work requests arrive in order, so the count should never go back; trailer.hpp says why this
  // function does not rely on that.
  if (more < 0x8000) peer_window_.store(before + more, std::memory_order_relaxed);
}

std::optional<uint32_t> VerbsEndpoint::accept_ordinary(std::span<ReceivePool::Piece> pieces,
                                                       uint32_t length,
                                                       Trailer& trailer) const noexcept {
  constexpr uint32_t kTrailer = sizeof(Trailer);
  ReceivePool::Piece& last = pieces.back();
  if (length % kOrbGrain != kTrailer % kOrbGrain || last.length < kTrailer) return std::nullopt;
  last.length -= kTrailer;
  std::memcpy(&trailer, last.data + last.length, sizeof trailer);
  TrailerPiece parts[ReceivePool::kMaxPieces];
  for (size_t i = 0; i < pieces.size(); ++i) parts[i] = {pieces[i].data, pieces[i].length};
  if (trailer.sequence != expected_ ||
      trailer.check != trailer_check({parts, pieces.size()}, trailer, hashed_))
    return std::nullopt;
  return length - kTrailer;
}

std::optional<uint32_t> VerbsEndpoint::accept_brief(std::span<ReceivePool::Piece> pieces,
                                                    uint32_t length, FragmentHeader& header,
                                                    Trailer& trailer) const noexcept {
  ReceivePool::Piece& piece = pieces.front();
  trailer.sequence = expected_;
  if (pieces.size() != 1 || !read_brief({piece.data, length}, header, trailer, hashed_))
    return std::nullopt;
  piece.length = header.length;
  // The upper bits of the number come from this end's own count, which is less than half a turn
  // behind.
  const uint32_t before = confirmed_.load(std::memory_order_relaxed);
  constexpr uint32_t kMask = (1U << kBriefReceivedBits) - 1;
  static_assert(kUnconfirmed <= kMask / 2 + 1);
  trailer.received = before + ((trailer.received - before) & kMask);
  return static_cast<uint32_t>(fragment_size(header.length));
}

bool VerbsEndpoint::accept(std::span<ReceivePool::Piece> pieces, uint32_t length,
                           FragmentHeader& header) noexcept {
  if (damaged_) return false;
  damaged_ = true;  // unless all is well
  Trailer trailer;
  const auto payload = is_brief(length) ? accept_brief(pieces, length, header, trailer)
                                        : accept_ordinary(pieces, length, trailer);
  if (!payload) {
    fail("a work request has not arrived as it was sent");
    return false;
  }
  ++expected_;
  const uint32_t received = received_.load(std::memory_order_relaxed);
  if (*payload != 0) {
    if (received == granted_.load(std::memory_order_relaxed)) {
      fail("the peer sends more than it was allowed to");
      return false;
    }
    received_.store(received + 1, std::memory_order_relaxed);
    received_bytes_.store(received_bytes_.load(std::memory_order_relaxed) + *payload,
                          std::memory_order_relaxed);
  }
  damaged_ = false;
  on_confirmed(trailer.received);
  return true;
}

void VerbsEndpoint::on_confirmed(uint32_t received) noexcept {
  const uint32_t before = confirmed_.load(std::memory_order_relaxed);
  if (received == before) return;
  // acquire pairs with the release in post_send(): payload_ends_ has been written.
  if (received - before > windowed_.load(std::memory_order_acquire) - before) {
    fail("the peer confirms what was never sent");
    return;
  }
  // release pairs with the acquire in completed(): this side may use the bytes again.
  confirmed_position_.store(
      payload_ends_[(received - 1) % kUnconfirmed].load(std::memory_order_relaxed),
      std::memory_order_release);
  confirmed_.store(received, std::memory_order_relaxed);
}

bool VerbsEndpoint::owes_confirmation() const noexcept {
  const uint32_t requests = received_.load(std::memory_order_relaxed) -
                            confirmed_received_.load(std::memory_order_relaxed);
  const uint64_t bytes = received_bytes_.load(std::memory_order_relaxed) -
                         confirmed_received_bytes_.load(std::memory_order_relaxed);
  return requests >= kUnconfirmed / 4 || (requests != 0 && bytes >= confirm_bytes_);
}

void VerbsEndpoint::release(RecvBuffer& buffer) noexcept {
  released_.fetch_add(buffer.length, std::memory_order_relaxed);
  if (device_.pool_->give_back(buffer)) device_.wake();
}

bool VerbsEndpoint::peer_wants_release() const noexcept {
  return device_.pool_->is_short();
}

bool VerbsDevice::is_grant_due(const VerbsEndpoint& endpoint) const noexcept {
  // Grants are not made for every single work request, but for an eighth of the window at a time.
  const uint32_t open = endpoint.granted_.load(std::memory_order_relaxed) -
                        endpoint.received_.load(std::memory_order_relaxed);
  return open == 0 || open + target_window_ / 8 < target_window_;
}

bool VerbsDevice::is_told_little(const VerbsEndpoint& endpoint) const noexcept {
  const uint32_t told = endpoint.announced_.load(std::memory_order_relaxed) -
                        endpoint.received_.load(std::memory_order_relaxed);
  return told + std::max(target_window_ / 2, 1U) <= target_window_;
}

bool VerbsDevice::must_tell(const VerbsEndpoint& endpoint) const noexcept {
  // An answer usually carries both the window and the confirmation. If none does, the peer is told
  // when half of its window or a quarter of its ring is used up.
  return is_told_little(endpoint) || endpoint.owes_confirmation();
}

void VerbsDevice::grant(VerbsEndpoint& endpoint, uint32_t share) noexcept {
  const uint32_t target = target_window_;
  const uint32_t granted = endpoint.granted_.load(std::memory_order_relaxed);
  const uint32_t open = granted - endpoint.received_.load(std::memory_order_relaxed);
  if (open == 0) short_.store(true, std::memory_order_relaxed);
  const uint32_t wanted = is_grant_due(endpoint) ? target - open : 0;
  // Idle peers may hold everything forever, so these few are granted regardless. If the queue runs
  // dry because of them, the adapters repeat what found no place.
  const uint32_t least = open < kLeastWindow ? kLeastWindow - open : 0;
  const uint32_t more = std::min(wanted, std::max(share, least));
  wants_spare_ = wants_spare_ || more < wanted;
  granted_ += more;
  endpoint.granted_.store(granted + more, std::memory_order_relaxed);
  // A peer that knows of little is told even if there is little to tell: a peer that has used up
  // all that it knows of sends nothing that could be answered.
  const bool untold = granted + more != endpoint.announced_.load(std::memory_order_relaxed);
  if ((!untold || !is_told_little(endpoint)) && !endpoint.owes_confirmation()) return;
  // seq_cst pairs with post_window().
  if (!endpoint.owes_window.exchange(true, std::memory_order_seq_cst))
    endpoint.user->request_post();
}

void VerbsDevice::grant_all() noexcept {
  uint32_t due = 0;
  for (const auto& [number, endpoint] : pairs_) due += is_grant_due(*endpoint) ? 1 : 0;
  wants_spare_ = false;
  const uint32_t share = spare() / std::max(due, 1U);
  for (const auto& [number, endpoint] : pairs_) grant(*endpoint, share);
}

VerbsEndpoint* VerbsDevice::find_receiver(uint32_t pair_number) noexcept {
  if (last_ == nullptr || last_->pair_number() != pair_number) last_ = find(pair_number);
  return last_;
}

size_t VerbsDevice::poll_recv(uint32_t lane, std::span<RecvCompletion> completions) noexcept {
  ibv_wc done[kReceives];
  // Each receive may consist of as many pieces as a work request has buffers.
  const size_t most = completions.size() >= kReceives * ReceivePool::kMaxPieces
                          ? kReceives
                          : completions.size() / ReceivePool::kMaxPieces;
  const int count = ibv_poll_cq(receives_, static_cast<int>(most), done);
  lanes[lane].found_all = count < static_cast<int>(most);
  size_t found = 0;
  bool due = false;  // a peer has to be granted or told something
  for (int i = 0; i < count; ++i) {
    VerbsEndpoint* const endpoint = find_receiver(done[i].qp_num);
    const bool good = done[i].status == IBV_WC_SUCCESS && endpoint != nullptr;
    const uint32_t length = good ? done[i].byte_len : 0;
    ReceivePool::Piece pieces[ReceivePool::kMaxPieces];
    uint32_t parts = pool_->take(done[i].wr_id, length, pieces);
    if (!good) {
      if (endpoint != nullptr) endpoint->fail(ibv_.ibv_wc_status_str(done[i].status));
      continue;
    }
    if (parts != 0 && !endpoint->accept({pieces, parts}, length, headers_[i])) {
      while (parts != 0) pool_->give_back(*pieces[--parts].buffer);
      continue;
    }
    const uint32_t immediate = ntohl(done[i].imm_data);
    endpoint->on_window(immediate);
    if (parts != 0 && pieces[0].length != 0) --granted_;
    if (must_tell(*endpoint)) {
      due = true;
    } else if (is_grant_due(*endpoint)) {
      if (owed_ != nullptr && owed_ != endpoint) grant(*owed_, spare());
      owed_ = endpoint;
    }
    // The trailer may have had a buffer to itself.
    if (parts != 0 && pieces[parts - 1].length == 0) pool_->give_back(*pieces[--parts].buffer);
    const FragmentHeader* const header = parts != 0 && is_brief(length) ? &headers_[i] : nullptr;
    uint64_t handed_on = endpoint->handed_on_.load(std::memory_order_relaxed);
    for (uint32_t part = 0; part < parts; ++part) {
      RecvBuffer& buffer = *pieces[part].buffer;
      buffer.endpoint = endpoint;
      handed_on += buffer.length;
      completions[found++] = {endpoint,  pieces[part].data, pieces[part].length,
                              immediate, &buffer,           part + 1 < parts,
                              header};
    }
    endpoint->handed_on_.store(handed_on, std::memory_order_relaxed);
    if (parts == 0)
      completions[found++] = {endpoint, nullptr, 0, immediate, nullptr, false, nullptr};
  }
  if (count == 0 && owed_ != nullptr) {
    // This poll has found nothing, so the grant delays nobody.
    grant(*owed_, spare());
    owed_ = nullptr;
  }
  bool relieved = false;
  if (pool_->wants_refill()) {
    relieved = pool_->refill();
    if (pool_->is_short()) short_.store(true, std::memory_order_relaxed);
  }
  if (relieved || (wants_spare_ && spare() != 0)) {
    target_window_ = window_of(pairs_.size());
    grant_all();
  } else if (due) {
    for (int i = 0; i < count; ++i)
      if (VerbsEndpoint* const endpoint = find_receiver(done[i].qp_num)) grant(*endpoint, spare());
  }
  return found;
}

}  // namespace sidestep::engine::verbs

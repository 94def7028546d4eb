// The hot path of the verbs device, the part that receives: what has arrived, how it is checked,
// and how much each peer may send. verbs_send_datapath.cpp sends what this part has to tell peers,
// and states the rules for both.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "engine/verbs/compact_form.hpp"
#include "engine/verbs/verbs_device.hpp"

namespace sidestep::engine::verbs {

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

std::optional<uint32_t> VerbsEndpoint::accept_compact(std::span<ReceivePool::Piece> pieces,
                                                      uint32_t length, FragmentHeader& header,
                                                      Trailer& trailer) const noexcept {
  ReceivePool::Piece& piece = pieces.front();
  trailer.sequence = expected_;
  if (pieces.size() != 1 || !read_compact({piece.data, length}, header, trailer, hashed_))
    return std::nullopt;
  piece.length = header.length;
  // The upper bits of the number come from this end's own count, which is less than half a turn
  // behind.
  const uint32_t before = confirmed_.load(std::memory_order_relaxed);
  constexpr uint32_t kMask = (1U << kCompactReceivedBits) - 1;
  static_assert(kUnconfirmed <= kMask / 2 + 1);
  trailer.received = before + ((trailer.received - before) & kMask);
  return static_cast<uint32_t>(fragment_size(header.length));
}

bool VerbsEndpoint::accept(std::span<ReceivePool::Piece> pieces, uint32_t length,
                           FragmentHeader& header) noexcept {
  if (damaged_) return false;
  damaged_ = true;  // unless all is well
  Trailer trailer;
  const auto payload = is_compact(length) ? accept_compact(pieces, length, header, trailer)
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
    const FragmentHeader* const header = parts != 0 && is_compact(length) ? &headers_[i] : nullptr;
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

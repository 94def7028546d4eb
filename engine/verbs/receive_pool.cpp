#include "engine/verbs/receive_pool.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "engine/base/log.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::verbs {

namespace {
constexpr size_t kLeastChunk = size_t{2} << 20;
constexpr size_t kMostChunks = 256;
constexpr size_t kFirstPart = size_t{4} << 20;
}  // namespace

PoolGeometry PoolGeometry::plan(uint64_t bytes, uint32_t max_pieces,
                                uint32_t max_requests) noexcept {
  // With 8 KiB a small message wastes little, and a long one needs few descriptors.
  constexpr uint32_t kBuffer = 8 * 1024;
  PoolGeometry geometry{};
  const uint32_t pieces =
      std::bit_floor(std::clamp<uint32_t>(max_pieces, 1, kMaxWorkRequest / kBuffer));
  geometry.pieces = pieces;
  geometry.buffer_size = kMaxWorkRequest / pieces;
  geometry.buffers =
      static_cast<uint32_t>(std::min<uint64_t>(bytes / geometry.buffer_size, 1U << 24));
  // Half of the buffers stand ready; the other half holds what was received and is not read yet.
  geometry.requests = std::clamp<uint32_t>(geometry.buffers / pieces / 2, 1, max_requests);
  return geometry;
}

ReceivePool::ReceivePool(const Library& library, ibv_pd* domain, const PoolGeometry& geometry,
                         uint32_t chunk_size, ibv_srq* queue)
    : ibv_(library),
      domain_(domain),
      geometry_(geometry),
      per_chunk_(chunk_size / geometry.buffer_size),
      chunk_shift_(static_cast<unsigned>(std::countr_zero(std::bit_ceil(per_chunk_)))),
      queue_(queue),
      buffers_(new RecvBuffer[geometry.buffers]),
      next_(new std::atomic<uint32_t>[geometry.buffers]),
      requests_(geometry.requests),
      batch_(std::clamp<uint32_t>(geometry.requests / 32, 1, 16)) {
  // Reserve everything now: later, only grow() allocates.
  chunks_.reserve((geometry.buffers + per_chunk_ - 1) / per_chunk_);
  free_.reserve(geometry.buffers);
  waiting_.reserve(geometry.requests);
  for (Request& request : requests_) request.taken = geometry.pieces;
}

std::unique_ptr<ReceivePool> ReceivePool::create(const Library& library, ibv_pd* domain,
                                                 const PoolGeometry& geometry) noexcept {
  const size_t size = size_t{geometry.buffers} * geometry.buffer_size;
  const size_t chunk =
      std::min(size, std::max<size_t>(kLeastChunk, std::bit_ceil(size / kMostChunks)));
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = geometry.requests;
  attributes.attr.max_sge = geometry.pieces;
  ibv_srq* const queue = library.ibv_create_srq(domain, &attributes);
  if (queue == nullptr) return nullptr;
  std::unique_ptr<ReceivePool> pool;
  try {
    pool.reset(new ReceivePool(library, domain, geometry, static_cast<uint32_t>(chunk), queue));
  } catch (const std::bad_alloc&) {
    library.ibv_destroy_srq(queue);
    errno = ENOMEM;
    return nullptr;
  }
  while (size_t{pool->registered_} * geometry.buffer_size < std::min(size, kFirstPart)) {
    auto memory = pool->next_chunk();
    if (!memory) return nullptr;
    pool->take_into_use(std::move(*memory));
  }
  pool->refill();
  return pool;
}

std::optional<Memory> ReceivePool::next_chunk() noexcept {
  const uint32_t buffers = std::min(per_chunk_, geometry_.buffers - registered_);
  auto memory = Memory::create(ibv_, domain_, size_t{buffers} * geometry_.buffer_size, false);
  if (memory) registered_ += buffers;
  if (!memory || registered_ == geometry_.buffers)
    can_grow_.store(false, std::memory_order_relaxed);
  return memory;
}

bool ReceivePool::grow() noexcept {
  // acquire pairs with the release in refill(): the place for the next chunk is free.
  if (grown_.load(std::memory_order_acquire) != nullptr) return true;
  if (!can_grow()) return false;
  auto chunk = next_chunk();
  Memory* const memory = chunk ? new (std::nothrow) Memory(std::move(*chunk)) : nullptr;
  if (memory == nullptr) {
    log(LogLevel::warn, "verbs: the receive pool stays at %u of %u buffers: %s", registered_,
        geometry_.buffers, std::strerror(errno != 0 ? errno : ENOMEM));
    return false;
  }
  // release pairs with the acquire in refill(): the chunk is complete.
  grown_.store(memory, std::memory_order_release);
  return true;
}

void ReceivePool::take_into_use(Memory chunk) noexcept {
  const auto first = static_cast<uint32_t>(chunks_.size()) * per_chunk_;
  const auto count = static_cast<uint32_t>(chunk.bytes().size() / geometry_.buffer_size);
  chunks_.push_back(std::move(chunk));
  for (uint32_t i = count; i-- > 0;) free_.push_back(first + i);
  // Half of the buffers stand ready; see PoolGeometry::plan().
  const uint32_t ready =
      std::clamp<uint32_t>((first + count) / geometry_.pieces / 2, 1, geometry_.requests);
  for (uint32_t request = requests(); request < ready; ++request) waiting_.push_back(request);
  requests_in_use_.store(ready, std::memory_order_relaxed);
}

ReceivePool::~ReceivePool() {
  ibv_.ibv_destroy_srq(queue_);
  delete grown_.load(std::memory_order_acquire);
}

uint32_t ReceivePool::take(uint64_t request, uint32_t length, Piece* pieces) noexcept {
  Request& taken = requests_[request];
  uint32_t count = 0;
  for (; length != 0; ++count) {
    const uint32_t index = taken.buffers[count];
    const uint32_t part = std::min(length, geometry_.buffer_size);
    RecvBuffer& buffer = buffers_[index];
    buffer.length = part;
    buffer.references.store(RecvBuffer::kPolled, std::memory_order_relaxed);
    pieces[count] = {address_of(index), &buffer, part};
    length -= part;
  }
  taken.taken = count;
  waiting_.push_back(static_cast<uint32_t>(request));  // reserved: never more than all of them
  --posted_;
  return count;
}

uint32_t ReceivePool::next_free() noexcept {
  if (free_.empty()) {
    // acquire pairs with the release in give_back(): the reader is done with the bytes. The push is
    // safe without a counter because this takes the whole stack at once.
    uint32_t index = given_back_.exchange(kNone, std::memory_order_acquire);
    for (; index != kNone; index = next_[index].load(std::memory_order_relaxed))
      free_.push_back(index);  // reserved: never more than all of them
    if (free_.empty()) return kNone;
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

bool ReceivePool::replace_taken(uint32_t request) noexcept {
  Request& waiting = requests_[request];
  while (waiting.taken != 0) {
    const uint32_t fresh = next_free();
    if (fresh == kNone) return false;
    waiting.buffers[--waiting.taken] = fresh;
  }
  return true;
}

void ReceivePool::arm_limit() noexcept {
  // This is a system call, made once after each time that the queue ran low. It waits until the
  // queue is well filled again; otherwise the event would come at once.
  if (posted_ < requests() / 2) return;
  ibv_srq_attr attributes{};
  attributes.srq_limit = requests() / 8;
  limit_armed_.store(true, std::memory_order_relaxed);
  ibv_.ibv_modify_srq(queue_, &attributes, IBV_SRQ_LIMIT);
}

bool ReceivePool::refill() noexcept {
  constexpr uint32_t kChain = 32;
  const bool was_short = is_short();
  // acquire pairs with the release in grow().
  Memory* const grown = grown_.load(std::memory_order_acquire);
  if (grown != nullptr) {
    take_into_use(std::move(*grown));
    delete grown;
    grown_.store(nullptr, std::memory_order_release);
  }
  while (!waiting_.empty()) {
    ibv_recv_wr chain[kChain];
    ibv_sge parts[kChain * kMaxPieces];
    uint32_t count = 0;
    while (count < kChain && count < waiting_.size()) {
      const uint32_t request = waiting_[waiting_.size() - 1 - count];
      if (!replace_taken(request)) break;
      ibv_sge* const list = parts + count * kMaxPieces;
      for (uint32_t i = 0; i < geometry_.pieces; ++i) {
        const uint32_t buffer = requests_[request].buffers[i];
        list[i] = {reinterpret_cast<uint64_t>(address_of(buffer)), geometry_.buffer_size,
                   chunk_of(buffer).lkey()};
      }
      chain[count] = {request, nullptr, list, static_cast<int>(geometry_.pieces)};
      if (count != 0) chain[count - 1].next = &chain[count];
      ++count;
    }
    uint32_t accepted = count;
    ibv_recv_wr* refused = nullptr;
    if (count != 0 && ibv_post_srq_recv(queue_, chain, &refused) != 0)
      accepted = refused != nullptr ? static_cast<uint32_t>(refused - chain) : 0;
    waiting_.resize(waiting_.size() - accepted);
    posted_ += accepted;
    if (accepted == 0 || accepted < count) break;
  }
  if (!limit_armed_.load(std::memory_order_relaxed)) arm_limit();
  // seq_cst: either give_back() sees that buffers are missing, or this function sees its buffer.
  const bool lacking = !waiting_.empty();
  if (lacking != was_short) short_.store(lacking, std::memory_order_seq_cst);
  if (lacking && !was_short && given_back_.load(std::memory_order_seq_cst) != kNone)
    return refill();
  return (was_short && !lacking) || grown != nullptr;
}

bool ReceivePool::give_back(RecvBuffer& buffer) noexcept {
  const auto index = static_cast<uint32_t>(&buffer - buffers_.get());
  uint32_t head = given_back_.load(std::memory_order_relaxed);
  do next_[index].store(head, std::memory_order_relaxed);
  // seq_cst pairs with the store of short_; next_free() needs the release that it includes.
  while (!given_back_.compare_exchange_weak(head, index, std::memory_order_seq_cst,
                                            std::memory_order_relaxed));
  return short_.load(std::memory_order_seq_cst);
}

}  // namespace sidestep::engine::verbs

// One end of a connection: its queue pair, from creation to readiness, and how it ends.
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>

#include "engine/base/log.hpp"
#include "engine/verbs/verbs_device.hpp"
#include "engine/wire/fragment.hpp"

namespace sidestep::engine::verbs {
namespace {

constexpr uint32_t kInlineWish = 256;  // bytes: the fragments of a small message
constexpr uint8_t kRetries = 6;        // after the first try; 7 means without end on Soft-RoCE
constexpr uint8_t kRnrForever = 7;     // waits for a receiver that is stopped, as TCP does
constexpr uint8_t kRnrTimer = 12;      // 0.64 ms
constexpr uint8_t kHops = 64;

uint32_t random_psn() noexcept {
  uint32_t psn = 0;
  if (getrandom(&psn, sizeof psn, GRND_NONBLOCK) < 0) psn = static_cast<uint32_t>(now_ns());
  return psn & 0xffffffU;
}

}  // namespace

/// A queue pair that waits for its peer's address.
class VerbsHalfOpen final : public HalfOpen {
 public:
  VerbsHalfOpen(VerbsDevice& device, std::unique_ptr<VerbsEndpoint> endpoint) noexcept
      : device_(device), endpoint_(std::move(endpoint)) {
    const Port& port = device_.port_;
    EndpointAddress& own = own_;
    own.device = static_cast<uint8_t>(DeviceKind::verbs);
    own.mtu = static_cast<uint8_t>(port.mtu);
    own.qp = endpoint_->pair_number();
    own.psn = random_psn();
    own.request_size = device_.pool_->geometry().request_size();
    own.lid = port.attributes.lid;
    own.orb_size = endpoint_->ring_.bytes().size();
    if (device_.is_software()) own.flags |= EndpointAddress::kHashed;
    own.window = endpoint_->granted_.load(std::memory_order_relaxed);
    if (port.is_roce()) own.flags |= EndpointAddress::kRoce;
    if (!port.gids.empty()) use(port.gids.front());
  }

  Offer offer() const noexcept override {
    Offer offer;
    offer.address = own_;
    return offer;
  }

  std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept override {
    for (const int fd : {peer.memory_fd, peer.doorbell_fd})
      if (fd >= 0) sys::close(fd);
    const EndpointAddress& theirs = peer.address;
    const Gid* const gid = choose_gid(theirs);
    if (theirs.device != static_cast<uint8_t>(DeviceKind::verbs) || theirs.mtu < IBV_MTU_256 ||
        theirs.mtu > IBV_MTU_4096 ||
        theirs.request_size < fragment_size(kMaxFragmentPayload) + sizeof(Trailer) ||
        theirs.orb_size == 0 || theirs.window == 0 || theirs.window > 0x7fff ||
        theirs.qp > 0xffffff || theirs.psn > 0xffffff) {
      log(LogLevel::warn, "verbs: a peer offered an impossible queue pair");
      return nullptr;
    }
    if (((theirs.flags ^ own_.flags) & EndpointAddress::kRoce) != 0 ||
        ((own_.flags & EndpointAddress::kRoce) != 0 && gid == nullptr)) {
      log(LogLevel::warn, "verbs: %s and the peer's port have no kind of address in common",
          device_.name());
      return nullptr;
    }
    if (!endpoint_->connect(own_, theirs, gid)) return nullptr;
    return std::move(endpoint_);
  }

 private:
  void use(const Gid& gid) noexcept {
    own_.flags = static_cast<uint8_t>(own_.flags | EndpointAddress::kHasGid);
    if (gid.roce_v2) own_.flags |= EndpointAddress::kRoceV2;
    std::memcpy(own_.gid, gid.value.raw, sizeof own_.gid);
  }

  /// Returns one of this port's GIDs that can talk to the peer's, or null.
  const Gid* choose_gid(const EndpointAddress& theirs) const noexcept {
    if ((theirs.flags & EndpointAddress::kHasGid) == 0) return nullptr;
    ibv_gid other{};
    std::memcpy(other.raw, theirs.gid, sizeof theirs.gid);
    const bool v2 = (theirs.flags & EndpointAddress::kRoceV2) != 0;
    for (const Gid& gid : device_.port_.gids)
      if (gid.fits(other, v2)) return &gid;
    return nullptr;
  }

  VerbsDevice& device_;
  std::unique_ptr<VerbsEndpoint> endpoint_;
  EndpointAddress own_;
};

std::unique_ptr<HalfOpen> VerbsDevice::begin() noexcept {
  if (lost_.load(std::memory_order_relaxed)) return nullptr;  // already logged
  errno = 0;
  auto ring = Memory::create(ibv_, domain_, options_.orb_size, true);
  auto trailers = Memory::create(ibv_, domain_, VerbsEndpoint::kPlaces * sizeof(Trailer), false);
  if (!ring || !trailers) {
    log(LogLevel::warn, "verbs: a ring of %llu bytes can't be registered: %s",
        static_cast<unsigned long long>(options_.orb_size), std::strerror(errno));
    return nullptr;
  }
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.send_cq = sends_;
  attributes.recv_cq = receives_;
  attributes.srq = pool_->queue();
  attributes.cap.max_send_wr = VerbsEndpoint::kPlaces;
  attributes.cap.max_send_sge = VerbsEndpoint::kSendPieces;
  attributes.cap.max_inline_data = kInlineWish;
  ibv_qp* pair = ibv_.ibv_create_qp(domain_, &attributes);
  if (pair == nullptr) {
    attributes.cap.max_inline_data = 0;
    pair = ibv_.ibv_create_qp(domain_, &attributes);
  }
  if (pair == nullptr) {
    log(LogLevel::warn, "verbs: ibv_create_qp failed: %s", std::strerror(errno));
    return nullptr;
  }
  std::unique_ptr<VerbsEndpoint> endpoint(
      new (std::nothrow) VerbsEndpoint(*this, std::move(*ring), std::move(*trailers), pair,
                                       std::min(attributes.cap.max_inline_data, kInlineWish)));
  if (endpoint == nullptr) {
    ibv_.ibv_destroy_qp(pair);
    return nullptr;
  }
  size_t endpoints = 0;
  {
    const std::lock_guard guard(send_lock_);
    endpoints = pairs_.size() + 1;
  }
  if (endpoints > options_.max_connections) {
    log(LogLevel::warn, "verbs: no more than %u connections fit", options_.max_connections);
    return nullptr;
  }
  endpoint->granted_.store(window_of(endpoints), std::memory_order_relaxed);
  endpoint->announced_.store(window_of(endpoints), std::memory_order_relaxed);
  ibv_qp_attr init{};
  init.qp_state = IBV_QPS_INIT;
  init.pkey_index = port_.pkey_index;
  init.port_num = port_.number;
  const int error = ibv_.ibv_modify_qp(
      pair, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) {
    log(LogLevel::warn, "verbs: a new queue pair could not be set up: %s", std::strerror(error));
    return nullptr;
  }
  return std::unique_ptr<HalfOpen>(new (std::nothrow) VerbsHalfOpen(*this, std::move(endpoint)));
}

VerbsEndpoint::VerbsEndpoint(VerbsDevice& device, Memory ring, Memory trailers, ibv_qp* pair,
                             uint32_t inline_size) noexcept
    : device_(device),
      ring_(std::move(ring)),
      trailers_(std::move(trailers)),
      pair_(pair),
      inline_size_(inline_size) {
  for (ibv_send_wr& request : requests_) request.opcode = IBV_WR_SEND_WITH_IMM;
}

VerbsEndpoint::~VerbsEndpoint() {
  device_.ibv_.ibv_destroy_qp(pair_);
}

bool VerbsEndpoint::connect(const EndpointAddress& own, const EndpointAddress& peer,
                            const Gid* gid) noexcept {
  constexpr auto kTrailer = static_cast<uint32_t>(sizeof(Trailer));
  request_size_ = std::min(peer.request_size - kTrailer, kMaxWorkRequest) &
                  ~static_cast<uint32_t>(kOrbGrain - 1);
  hashed_ = ((own.flags | peer.flags) & EndpointAddress::kHashed) != 0;
  confirm_bytes_ = peer.orb_size / 4;
  peer_window_.store(peer.window, std::memory_order_relaxed);
  const Port& port = device_.port_;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = std::min(port.mtu, static_cast<ibv_mtu>(peer.mtu));
  attributes.dest_qp_num = peer.qp;
  attributes.rq_psn = peer.psn;
  attributes.max_dest_rd_atomic = 0;
  attributes.min_rnr_timer = kRnrTimer;
  attributes.ah_attr.port_num = port.number;
  attributes.ah_attr.dlid = peer.lid;
  // InfiniBand needs the global route only beyond the subnet, as a LID of 0 indicates.
  if (gid != nullptr && (port.is_roce() || peer.lid == 0)) {
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.hop_limit = kHops;
    attributes.ah_attr.grh.sgid_index = gid->index;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
  }
  int error = device_.ibv_.ibv_modify_qp(pair_, &attributes,
                                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
                                             IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) {
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = own.psn;
    // By default 1.07 s, seven times: 7.5 s in all, during which a link may be gone. A loss that a
    // later packet reveals is repaired at once, whatever this value is. It is not shorter, because
    // Soft-RoCE counts the time that packets wait to be sent, and fails when it repeats what is
    // merely late: see trailer.hpp.
    attributes.timeout = device_.options_.timeout;
    attributes.retry_cnt = kRetries;
    attributes.rnr_retry = kRnrForever;
    attributes.max_rd_atomic = 0;
    error = device_.ibv_.ibv_modify_qp(pair_, &attributes,
                                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                                           IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                           IBV_QP_MAX_QP_RD_ATOMIC);
  }
  if (error == 0) return true;
  log(LogLevel::warn, "verbs: two queue pairs could not be joined: %s", std::strerror(error));
  return false;
}

uint32_t VerbsEndpoint::post_batch() const noexcept {
  return device_.is_software() ? request_size_ : 1;  // software posts by a system call that sends
}

void VerbsEndpoint::stop() noexcept {
  if (stopping_.exchange(true, std::memory_order_relaxed)) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  device_.ibv_.ibv_modify_qp(pair_, &attributes, IBV_QP_STATE);
}

void VerbsEndpoint::fail(const char* what) noexcept {
  if (stopping_.load(std::memory_order_relaxed) ||
      broken_.exchange(true, std::memory_order_relaxed))
    return;
  log(LogLevel::info, "%s: queue pair %u has failed: %s", device_.name(), pair_number(), what);
  device_.wake();
}

}  // namespace sidestep::engine::verbs

#include "engine/shm/shm_device.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "engine/base/log.hpp"
#include "engine/base/private_fd.hpp"

namespace sidestep::engine::shm {

namespace {
/// The descriptors that a full ring of this size takes, in work requests as large as they get.
uint32_t reserve_for(size_t orb_size) noexcept {
  constexpr size_t kLeast = kMaxWorkRequest - fragment_size(kMaxFragmentPayload);
  return static_cast<uint32_t>(std::min(kDescriptors / 2, orb_size / kLeast + 2));
}
}  // namespace

ShmEndpoint::ShmEndpoint(Region outgoing, Region incoming,
                         std::shared_ptr<const PrivateFd> doorbell)
    : outgoing_(std::move(outgoing)),
      incoming_(std::move(incoming)),
      doorbell_(std::move(doorbell)),
      reserve_(reserve_for(outgoing_.orb().size())),
      buffers_(new (std::nothrow) RecvBuffer[kDescriptors]) {
  for (size_t i = 0; is_whole() && i < kDescriptors; ++i) buffers_[i].endpoint = this;
  outgoing_.control().cpu.store(-1, std::memory_order_relaxed);
}

void ShmEndpoint::fail(const char* what) noexcept {
  if (!broken_.exchange(true, std::memory_order_relaxed))
    log(LogLevel::error, "shared memory: the peer wrote %s; the connection is closed", what);
}

class ShmHalfOpen final : public HalfOpen {
 public:
  ShmHalfOpen(Region region, int doorbell) noexcept
      : region_(std::move(region)), doorbell_(doorbell) {}

  Offer offer() const noexcept override {
    Offer offer;
    offer.address.device = static_cast<uint8_t>(DeviceKind::shm);
    offer.address.orb_size = region_.orb().size();
    offer.memory_fd = region_.fd();
    offer.doorbell_fd = doorbell_;
    return offer;
  }

  std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept override try {
    PrivateFd bell(private_fd_adopt(peer.doorbell_fd));
    const uint64_t size = peer.address.orb_size;
    const bool sane = peer.memory_fd >= 0 && size >= 64 * 1024 && size <= uint64_t{1} << 30 &&
                      (size & (size - 1)) == 0;
    std::optional<Region> incoming;
    if (sane) incoming = Region::map_peer(peer.memory_fd, size);
    if (peer.memory_fd >= 0) sys::close(peer.memory_fd);
    if (!incoming || (bell.get() < 0 && peer.sibling == nullptr)) return nullptr;
    // Only endpoints made by a device of this kind are siblings.
    const auto doorbell = bell.get() >= 0
                              ? std::make_shared<const PrivateFd>(std::move(bell))
                              : static_cast<const ShmEndpoint*>(peer.sibling)->doorbell_;
    region_.close_fd();  // both sides have mapped it; from now on it has no name at all
    auto endpoint =
        std::make_unique<ShmEndpoint>(std::move(region_), std::move(*incoming), doorbell);
    return endpoint->is_whole() ? std::move(endpoint) : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }

 private:
  Region region_;
  const int doorbell_;
};

std::unique_ptr<HalfOpen> ShmDevice::begin() noexcept {
  auto region = Region::create(orb_size_);
  if (!region) return nullptr;
  return std::unique_ptr<HalfOpen>(new (std::nothrow) ShmHalfOpen(std::move(*region), event_fd_));
}

std::unique_ptr<ShmDevice> ShmDevice::create(uint64_t orb_size) noexcept {
  const int fd = private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd < 0) {
    log(LogLevel::warn, "shared memory: eventfd failed: %s", std::strerror(-fd));
    return nullptr;
  }
  std::unique_ptr<ShmDevice> device(new (std::nothrow) ShmDevice(fd, orb_size));
  if (device == nullptr) private_fd_close(fd);
  return device;
}

void ShmDevice::clear_event() noexcept {
  uint64_t count = 0;
  sys::read(event_fd_, &count, sizeof count);
  want_all();  // any peer may have rung
}

void ShmDevice::ring() noexcept {
  const uint64_t one = 1;
  sys::write(event_fd_, &one, sizeof one);
}

ShmDevice::~ShmDevice() {
  private_fd_close(event_fd_);
}

void ShmDevice::add(Endpoint& endpoint) {
  // The caller passes only endpoints that this device made.
  auto& channel = static_cast<ShmEndpoint&>(endpoint);
  const std::lock_guard guard(arm_lock_);
  PollingSet& set = sets_[channel.lane];
  set.endpoints.push_back(&channel);
  std::swap(set.endpoints.back(), set.endpoints[set.hot++]);
  channel.outgoing_.control().armed.store(epoch_.load(std::memory_order_relaxed),
                                          std::memory_order_relaxed);
}

void ShmDevice::remove(Endpoint& endpoint) noexcept {
  const std::lock_guard guard(arm_lock_);
  PollingSet& set = sets_[endpoint.lane];
  const auto found = std::find(set.endpoints.begin(), set.endpoints.end(), &endpoint);
  if (found != set.endpoints.end()) {
    if (static_cast<size_t>(found - set.endpoints.begin()) < set.hot) --set.hot;
    set.endpoints.erase(found);
  }
}

void ShmDevice::sort(PollingSet& set, bool ages) noexcept {
  std::vector<ShmEndpoint*>& endpoints = set.endpoints;
  const std::lock_guard guard(arm_lock_);
  const auto is_idle = [](const ShmEndpoint& endpoint) {
    return endpoint.polled_count_.load(std::memory_order_relaxed) == endpoint.polled_when_aged_;
  };
  for (size_t i = set.hot; i < endpoints.size(); ++i)
    if (!is_idle(*endpoints[i])) std::swap(endpoints[i], endpoints[set.hot++]);
  for (size_t i = ages ? set.hot : 0; i-- > 0;) {
    ShmEndpoint& endpoint = *endpoints[i];
    if (is_idle(endpoint)) std::swap(endpoints[i], endpoints[--set.hot]);
    endpoint.polled_when_aged_ = endpoint.polled_count_.load(std::memory_order_relaxed);
  }
}

void ShmDevice::store_epoch(uint32_t epoch) noexcept {
  epoch_.store(epoch, std::memory_order_relaxed);
  for (const PollingSet& set : sets_)
    for (ShmEndpoint* endpoint : set.endpoints)
      endpoint->outgoing_.control().armed.store(epoch, std::memory_order_relaxed);
}

void ShmDevice::arm() noexcept {
  // unlock() is a full barrier: it orders the stores here before the caller's last poll. It pairs
  // with the sender's barrier between publishing a descriptor and reading `armed`.
  const std::lock_guard guard(arm_lock_);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  store_epoch((epoch & 1U) != 0 ? epoch + 2 : epoch + 1);
}

void ShmDevice::disarm() noexcept {
  if (!is_armed()) return;
  const std::lock_guard guard(arm_lock_);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  if ((epoch & 1U) != 0) store_epoch(epoch + 1);
}

}  // namespace sidestep::engine::shm

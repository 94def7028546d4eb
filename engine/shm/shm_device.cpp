#include "engine/shm/shm_device.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "engine/log.hpp"
#include "engine/private_fd.hpp"

namespace sidestep::engine::shm {

namespace {
/// Descriptors that a full ring of this size takes, in work requests as large as they get.
uint32_t reserve_for(size_t orb_size) noexcept {
  constexpr size_t kLeast = kMaxWorkRequest - fragment_size(kMaxFragmentPayload);
  return static_cast<uint32_t>(std::min(kDescriptors / 2, orb_size / kLeast + 2));
}
}  // namespace

ShmEndpoint::ShmEndpoint(Region outgoing, Region incoming, int doorbell)
    : outgoing_(std::move(outgoing)),
      incoming_(std::move(incoming)),
      doorbell_(doorbell),
      reserve_(reserve_for(outgoing_.orb().size())),
      buffers_(new (std::nothrow) RecvBuffer[kDescriptors]) {
  for (size_t i = 0; is_whole() && i < kDescriptors; ++i) buffers_[i].endpoint = this;
  outgoing_.control().cpu.store(-1, std::memory_order_relaxed);
}

ShmEndpoint::~ShmEndpoint() {
  private_fd_close(doorbell_);
}

void ShmEndpoint::fail(const char* what) noexcept {
  if (!broken_.exchange(true, std::memory_order_relaxed))
    log(LogLevel::error, "shared memory: the peer wrote %s; the connection is closed", what);
}

namespace {

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

  std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept override {
    const uint64_t size = peer.address.orb_size;
    const bool sane = peer.memory_fd >= 0 && peer.doorbell_fd >= 0 && size >= 64 * 1024 &&
                      size <= uint64_t{1} << 30 && (size & (size - 1)) == 0;
    std::optional<Region> incoming;
    if (sane) incoming = Region::map_peer(peer.memory_fd, size);
    if (peer.memory_fd >= 0) sys::close(peer.memory_fd);
    const int doorbell = private_fd_adopt(peer.doorbell_fd);
    if (!incoming || doorbell < 0) {
      private_fd_close(doorbell);
      return nullptr;
    }
    region_.close_fd();  // both sides have it mapped: from now on it has no name at all
    std::unique_ptr<ShmEndpoint> endpoint(
        new (std::nothrow) ShmEndpoint(std::move(region_), std::move(*incoming), doorbell));
    if (endpoint == nullptr) private_fd_close(doorbell);
    if (endpoint != nullptr && !endpoint->is_whole()) endpoint = nullptr;
    return endpoint;
  }

 private:
  Region region_;
  const int doorbell_;
};

}  // namespace

std::unique_ptr<HalfOpen> ShmDevice::begin() noexcept {
  auto region = Region::create(orb_size_);
  if (!region) return nullptr;
  return std::unique_ptr<HalfOpen>(new (std::nothrow) ShmHalfOpen(std::move(*region), event_fd_));
}

std::unique_ptr<ShmDevice> ShmDevice::create(uint64_t orb_size) noexcept {
  const int fd = private_fd_adopt(sys::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (fd < 0) {
    log(LogLevel::warn, "shared memory: eventfd: %s", std::strerror(-fd));
    return nullptr;
  }
  return std::unique_ptr<ShmDevice>(new ShmDevice(fd, orb_size));
}

void ShmDevice::clear_event() noexcept {
  uint64_t count = 0;
  sys::read(event_fd_, &count, sizeof count);
  want_all.store(true, std::memory_order_release);  // any peer may have rung
}

void ShmDevice::ring() noexcept {
  const uint64_t one = 1;
  sys::write(event_fd_, &one, sizeof one);
}

ShmDevice::~ShmDevice() {
  private_fd_close(event_fd_);
}

void ShmDevice::add(Endpoint& endpoint) {
  // Only endpoints that this device made are given to it.
  auto& channel = static_cast<ShmEndpoint&>(endpoint);
  arm_lock_.lock();
  endpoints_.push_back(&channel);
  std::swap(endpoints_.back(), endpoints_[hot_++]);
  channel.outgoing_.control().armed.store(epoch_.load(std::memory_order_relaxed),
                                          std::memory_order_relaxed);
  arm_lock_.unlock();
}

void ShmDevice::remove(Endpoint& endpoint) noexcept {
  arm_lock_.lock();
  const auto found = std::find(endpoints_.begin(), endpoints_.end(), &endpoint);
  if (found != endpoints_.end()) {
    if (static_cast<size_t>(found - endpoints_.begin()) < hot_) --hot_;
    endpoints_.erase(found);
  }
  arm_lock_.unlock();
}

void ShmDevice::sort(bool ages) noexcept {
  arm_lock_.lock();
  const auto is_idle = [](const ShmEndpoint& endpoint) {
    return endpoint.polled_count_.load(std::memory_order_relaxed) == endpoint.polled_when_aged_;
  };
  for (size_t i = hot_; i < endpoints_.size(); ++i)
    if (!is_idle(*endpoints_[i])) std::swap(endpoints_[i], endpoints_[hot_++]);
  for (size_t i = ages ? hot_ : 0; i-- > 0;) {
    ShmEndpoint& endpoint = *endpoints_[i];
    if (is_idle(endpoint)) std::swap(endpoints_[i], endpoints_[--hot_]);
    endpoint.polled_when_aged_ = endpoint.polled_count_.load(std::memory_order_relaxed);
  }
  arm_lock_.unlock();
}

void ShmDevice::store_epoch(uint32_t epoch) noexcept {
  epoch_.store(epoch, std::memory_order_relaxed);
  for (ShmEndpoint* endpoint : endpoints_)
    endpoint->outgoing_.control().armed.store(epoch, std::memory_order_relaxed);
}

void ShmDevice::arm() noexcept {
  arm_lock_.lock();
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  store_epoch((epoch & 1U) != 0 ? epoch + 2 : epoch + 1);
  // unlock() is a full barrier: it orders the stores above before the caller's last poll, and pairs
  // with the sender's barrier between publishing a descriptor and reading `armed`.
  arm_lock_.unlock();
}

void ShmDevice::disarm() noexcept {
  if (!is_armed()) return;
  arm_lock_.lock();
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  if ((epoch & 1U) != 0) store_epoch(epoch + 1);
  arm_lock_.unlock();
}

}  // namespace sidestep::engine::shm

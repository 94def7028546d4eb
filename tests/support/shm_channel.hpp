#pragma once
/// A channel of the same-host device. Its far end is either another device or the test itself,
/// which may write anything into the shared memory.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <memory>
#include <optional>
#include <utility>

#include "engine/base/private_fd.hpp"
#include "engine/base/sys.hpp"
#include "engine/shm/shm_device.hpp"

namespace sidestep::tests {

inline constexpr size_t kChannelOrb = 64 * 1024;

inline std::shared_ptr<const engine::PrivateFd> adopt(long fd) {
  return std::make_shared<engine::PrivateFd>(engine::private_fd_adopt(static_cast<int>(fd)));
}

inline auto duplicate(int fd) {
  return adopt(engine::sys::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

/// Two devices with an endpoint each, as two processes would have them. The devices may belong to
/// another channel as well.
struct ShmChannel {
  using Device = engine::shm::ShmDevice;
  using Endpoint = engine::shm::ShmEndpoint;

  ShmChannel() : ShmChannel(Device::create(kChannelOrb), Device::create(kChannelOrb)) {}
  ShmChannel(std::shared_ptr<Device> of_left, std::shared_ptr<Device> of_right)
      : left_device(std::move(of_left)), right_device(std::move(of_right)) {
    auto a = engine::shm::Region::create(kChannelOrb);
    auto b = engine::shm::Region::create(kChannelOrb);
    auto a_at_b = engine::shm::Region::map_peer(a->fd(), kChannelOrb);
    auto b_at_a = engine::shm::Region::map_peer(b->fd(), kChannelOrb);
    left = std::make_unique<Endpoint>(std::move(*a), std::move(*b_at_a),
                                      duplicate(right_device->event_fd()));
    right = std::make_unique<Endpoint>(std::move(*b), std::move(*a_at_b),
                                       duplicate(left_device->event_fd()));
    left_device->add(*left);
    right_device->add(*right);
  }
  ~ShmChannel() {
    left_device->remove(*left);
    right_device->remove(*right);
  }
  ShmChannel(const ShmChannel&) = delete;

  std::shared_ptr<Device> left_device;
  std::shared_ptr<Device> right_device;
  std::unique_ptr<Endpoint> left;
  std::unique_ptr<Endpoint> right;
};

/// One device with an endpoint; `peer` is the memory of a process that may write anything.
struct HostileChannel {
  HostileChannel() {
    auto own = engine::shm::Region::create(kChannelOrb);
    auto incoming = engine::shm::Region::map_peer(peer.fd(), kChannelOrb);
    endpoint = std::make_unique<engine::shm::ShmEndpoint>(std::move(*own), std::move(*incoming),
                                                          adopt(engine::sys::eventfd(0, 0)));
    device->add(*endpoint);
  }
  ~HostileChannel() { device->remove(*endpoint); }

  /// Publishes descriptor `number` (from 0).
  void publish(uint64_t number, uint32_t length) {
    engine::shm::Descriptor& descriptor = peer.descriptors()[number % engine::shm::kDescriptors];
    descriptor.length.store(length);
    descriptor.immediate.store(0);
    descriptor.sequence.store(number + 1);
  }

  engine::shm::Region peer = std::move(*engine::shm::Region::create(kChannelOrb));
  std::unique_ptr<engine::shm::ShmDevice> device = engine::shm::ShmDevice::create(kChannelOrb);
  std::unique_ptr<engine::shm::ShmEndpoint> endpoint;
};

}  // namespace sidestep::tests

#pragma once
/// The one place that knows which devices exist.
#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "config/config.hpp"
#include "engine/device/device.hpp"

namespace sidestep::engine {

namespace verbs {
struct VerbsOptions;
}
/// What the options mean to the verbs device.
verbs::VerbsOptions verbs_options(const config::Config& config);

/// What one side of a connection hands to the other: where its endpoint is and, on one host, its
/// memory and its doorbell.
struct Offer {
  EndpointAddress address;
  int memory_fd = -1;
  int doorbell_fd = -1;
};

/// A connection that is being made: this side's half exists, the peer's offer is awaited.
class HalfOpen {
 public:
  virtual ~HalfOpen() = default;
  /// Descriptors stay owned by this object.
  virtual Offer offer() const noexcept = 0;
  /// Joins the peer's half. Takes ownership of its descriptors in every case; null when it is
  /// unusable (logged).
  virtual std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept = 0;
};

/// The devices of a node: at most one of each kind, opened when they are first needed and kept.
/// Only the manager's thread (and whoever starts the node) opens; any thread walks over them.
class Devices {
 public:
  explicit Devices(const config::Config& config) noexcept : config_(config) {}
  /// In the child: a thread of the parent may have been opening one.
  static void forget_after_fork() noexcept;
  Devices(const Devices&) = delete;

  /// The kind of device that would join this node to one on the same host, or on another; `none`
  /// where SIDESTEP_DEVICE rules it out.
  DeviceKind kind_for(bool same_process, bool same_host) const noexcept;
  /// Whether SIDESTEP_DEVICE lets a peer on the same host choose this kind.
  bool allows(DeviceKind kind) const noexcept;
  /// The device of this kind. It is opened by the first call; one that can't be opened is logged
  /// once, with what to do about it, and is null from then on. `added` tells of a new one.
  Device* get(DeviceKind kind, bool& added) noexcept;

  // acquire pairs with the release in get(): the device is complete.
  const std::unique_ptr<Device>* begin() const noexcept { return devices_.data(); }
  const std::unique_ptr<Device>* end() const noexcept {
    return devices_.data() + count_.load(std::memory_order_acquire);
  }

 private:
  std::unique_ptr<Device> open(DeviceKind kind) noexcept;

  const config::Config& config_;
  std::array<std::unique_ptr<Device>, 2> devices_;
  std::atomic<size_t> count_{0};
  bool failed_[3] = {};
};

}  // namespace sidestep::engine

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
/// Translates the options for the verbs device.
verbs::VerbsOptions verbs_options(const config::Config& config);

/// The devices of a node: one of each kind at a time. Each is opened when it is first needed and
/// kept even after it is lost, because endpoints and received pieces refer to it.
/// Only the manager's thread (and whoever starts the node) opens; any thread walks over them.
class Devices {
 public:
  /// Opens a device; null if that is not possible. `quiet`: it need not be logged (again).
  using Open = std::unique_ptr<Device> (*)(const config::Config& config, DeviceKind kind,
                                           bool quiet) noexcept;

  explicit Devices(const config::Config& config, Open open = open_device) noexcept
      : config_(config), open_(open) {}
  /// Called in the child: a thread of the parent may have been opening a device.
  static void forget_after_fork() noexcept;
  Devices(const Devices&) = delete;

  /// The kind of device that would join this node to a node on the same host, or on another one;
  /// `none` if SIDESTEP_DEVICE rules it out.
  DeviceKind kind_for(bool same_process, bool same_host) const noexcept;
  /// True if SIDESTEP_DEVICE lets a peer on the same host choose this kind.
  bool allows(DeviceKind kind) const noexcept;
  /// Returns the device of this kind, which the first call opens. One that can't be opened is
  /// logged once, with what to do about it, and the result is null. Later calls try again after a
  /// delay that grows with each failure; they also replace a lost device. `added`: a new device was
  /// opened; `now`: now_ns().
  Device* get(DeviceKind kind, uint64_t now, bool& added) noexcept;
  /// True if the last device of this kind is lost and another may come.
  bool may_return(DeviceKind kind) const noexcept;

  // acquire pairs with the release in get(): the device is complete.
  const std::unique_ptr<Device>* begin() const noexcept { return devices_.data(); }
  const std::unique_ptr<Device>* end() const noexcept {
    return devices_.data() + count_.load(std::memory_order_acquire);
  }

  /// Lost devices take up memory for as long as the process lives.
  static constexpr size_t kMost = 10;
  static constexpr uint64_t kFirstWait = 1'000'000'000;  // ns
  static constexpr uint64_t kLongestWait = 64 * kFirstWait;

 private:
  static std::unique_ptr<Device> open_device(const config::Config& config, DeviceKind kind,
                                             bool quiet) noexcept;
  Device* last(DeviceKind kind) const noexcept;

  /// Failures of one kind since it was last opened.
  struct Failure {
    uint64_t wait = 0;  // 0: none
    uint64_t retry_at = 0;
  };

  const config::Config& config_;
  const Open open_;
  std::array<std::unique_ptr<Device>, kMost> devices_;
  std::atomic<size_t> count_{0};
  std::array<Failure, 3> failures_;
};

}  // namespace sidestep::engine

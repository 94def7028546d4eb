#include "engine/devices/factory.hpp"

#include <algorithm>
#include <new>

#include "engine/base/log.hpp"
#include "engine/shm/shm_device.hpp"
#include "engine/verbs/library.hpp"
#include "engine/verbs/verbs_device.hpp"

namespace sidestep::engine {
namespace {

/// True if `choice` is "verbs" or "verbs:NAME"; `name` gets the name, if there is one.
bool asks_for_verbs(const std::string& choice, std::string& name) {
  constexpr std::string_view kVerbs = "verbs";
  if (choice.compare(0, kVerbs.size(), kVerbs) != 0) return false;
  if (choice.size() > kVerbs.size()) name = choice.substr(kVerbs.size() + 1);
  return true;
}

}  // namespace

void Devices::forget_after_fork() noexcept {
  verbs::Library::forget_after_fork();
}

verbs::VerbsOptions verbs_options(const config::Config& config) {
  verbs::VerbsOptions options{};
  asks_for_verbs(config.device, options.port.device);
  options.port.port = config.verbs_port;
  options.port.gid_index = config.gid_index == 255 ? -1 : static_cast<int>(config.gid_index);
  options.port.mtu = config.verbs_mtu;
  options.port.pkey = config.pkey;
  options.timeout = static_cast<uint8_t>(config.verbs_timeout);
  options.pool_size = config.pool_size;
  options.orb_size = config.orb_size;
  options.max_connections = config.connections;
  return options;
}

DeviceKind Devices::kind_for(bool same_process, bool same_host) const noexcept {
  if (config_.device == "none") return DeviceKind::none;
  const bool verbs_forced = config_.device.compare(0, 5, "verbs") == 0;
  // Adapters are not tested with a queue pair that is connected to itself.
  if (same_process || (same_host && !verbs_forced)) return DeviceKind::shm;
  return config_.device == "shm" ? DeviceKind::none : DeviceKind::verbs;
}

bool Devices::allows(DeviceKind kind) const noexcept {
  // The peer says which kind, so it may be any number.
  if (kind != DeviceKind::shm && kind != DeviceKind::verbs) return false;
  return config_.device == "auto" || kind == kind_for(false, true);
}

std::unique_ptr<Device> Devices::open_device(const config::Config& config, DeviceKind kind,
                                             bool quiet) noexcept {
  if (kind == DeviceKind::shm) return shm::ShmDevice::create(config.orb_size);
  try {
    std::string why;
    auto device = verbs::VerbsDevice::create(verbs_options(config), why);
    if (device == nullptr) {
      // A user who asked for verbs wants to know more than one who asked for whatever there is.
      const LogLevel level = config.device == "auto" ? LogLevel::info : LogLevel::warn;
      log(quiet ? LogLevel::debug : level, "verbs: %s; streams to other hosts stay on the kernel",
          why.c_str());
    }
    return device;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

Device* Devices::last(DeviceKind kind) const noexcept {
  Device* last = nullptr;
  for (const auto& device : *this)
    if (device->kind() == kind) last = device.get();
  return last;
}

bool Devices::may_return(DeviceKind kind) const noexcept {
  const Device* const device = last(kind);
  return device != nullptr && device->is_lost() && count_.load(std::memory_order_relaxed) < kMost;
}

Device* Devices::get(DeviceKind kind, uint64_t now, bool& added) noexcept {
  added = false;
  if (kind == DeviceKind::none) return nullptr;
  Device* const present = last(kind);
  if (present != nullptr && !present->is_lost()) return present;
  const size_t count = count_.load(std::memory_order_relaxed);
  Failure& failure = failures_[static_cast<size_t>(kind)];
  if (count == kMost) {
    if (failure.retry_at == 0)
      log(LogLevel::error, "%s was lost too often; its streams stay on the kernel",
          present != nullptr ? present->name() : "a device");
    failure.retry_at = ~uint64_t{0};
  }
  if (now < failure.retry_at) return nullptr;
  auto device = open_(config_, kind, failure.wait != 0);
  if (device == nullptr) {
    failure.wait = failure.wait == 0 ? kFirstWait : std::min(failure.wait * 2, kLongestWait);
    failure.retry_at = now + failure.wait;
    return nullptr;
  }
  failure = {};
  devices_[count] = std::move(device);
  count_.store(count + 1, std::memory_order_release);
  added = true;
  return devices_[count].get();
}

}  // namespace sidestep::engine

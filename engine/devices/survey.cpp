#include "engine/devices/survey.hpp"

#include <cerrno>
#include <cstring>

#include "engine/base/address.hpp"
#include "engine/devices/factory.hpp"
#include "engine/verbs/verbs_device.hpp"

namespace sidestep::engine {
namespace {

using verbs::Library;

const char* name_of(ibv_port_state state) noexcept {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "deferred";
    case IBV_PORT_NOP:
      break;
  }
  return "in an unknown state";
}

const char* name_of_type(uint32_t type) noexcept {
  return type == IBV_GID_TYPE_ROCE_V2 ? "RoCEv2" : type == IBV_GID_TYPE_ROCE_V1 ? "RoCEv1" : "IB";
}

std::string text_of(const ibv_gid& gid) {
  Address address;
  std::memcpy(address.ip.data(), gid.raw, address.ip.size());
  return ip_text(address);
}

/// The whole GID table of a device, for all its ports.
std::vector<ibv_gid_entry> gid_table(const Library& library, ibv_context* context) {
  std::vector<ibv_gid_entry> entries(1024);
  const ssize_t count = library._ibv_query_gid_table(context, entries.data(), entries.size(), 0,
                                                     sizeof(ibv_gid_entry));
  entries.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return entries;
}

VerbsPort look_at_port(ibv_context* context, unsigned number,
                       const std::vector<ibv_gid_entry>& gids) {
  VerbsPort port;
  port.number = number;
  ibv_port_attr attributes{};
  if (Library::query_port(context, static_cast<uint8_t>(number), attributes) != 0) {
    port.state = "can't be queried";
    return port;
  }
  port.active = attributes.state == IBV_PORT_ACTIVE;
  port.state = name_of(attributes.state);
  port.link_layer = attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
  port.mtu = verbs::bytes_of(attributes.active_mtu);
  port.lid = attributes.lid;
  for (const ibv_gid_entry& entry : gids) {
    if (entry.port_num == number)
      port.gids.push_back({entry.gid_index, text_of(entry.gid), name_of_type(entry.gid_type)});
  }
  return port;
}

VerbsAdapter look_at(const Library& library, ibv_device* device) {
  VerbsAdapter adapter;
  adapter.name = library.ibv_get_device_name(device);
  errno = 0;
  ibv_context* const context = library.ibv_open_device(device);
  if (context == nullptr) {
    adapter.fault = std::string("it can't be opened: ") + std::strerror(errno != 0 ? errno : EIO);
    return adapter;
  }
  ibv_device_attr attributes{};
  if (const int error = library.ibv_query_device(context, &attributes); error != 0) {
    adapter.fault = std::string("it can't be queried: ") + std::strerror(error);
  } else {
    const auto gids = gid_table(library, context);
    for (unsigned number = 1; number <= attributes.phys_port_cnt; ++number)
      adapter.ports.push_back(look_at_port(context, number, gids));
  }
  library.ibv_close_device(context);
  return adapter;
}

}  // namespace

VerbsSurvey survey_verbs() {
  VerbsSurvey survey;
  const char* fault = nullptr;
  const Library* const library = Library::get(&fault);
  if (library == nullptr) {
    survey.fault = fault;
    return survey;
  }
  int count = 0;
  ibv_device** const devices = library->ibv_get_device_list(&count);
  if (devices == nullptr) return survey;
  for (int i = 0; i < count; ++i) survey.adapters.push_back(look_at(*library, devices[i]));
  library->ibv_free_device_list(devices);
  return survey;
}

VerbsTrial try_verbs(const config::Config& config) {
  VerbsTrial trial;
  const auto device = verbs::VerbsDevice::create(verbs_options(config), trial.why);
  if (device == nullptr) return trial;
  const verbs::Port& port = device->port();
  trial.why.clear();
  trial.adapter = port.name;
  trial.port = port.number;
  trial.mtu = verbs::bytes_of(port.mtu);
  for (const verbs::Gid& gid : port.gids) {
    const char* const type = !port.is_roce() ? "IB" : gid.roce_v2 ? "RoCEv2" : "RoCEv1";
    trial.gids.push_back({gid.index, text_of(gid.value), type});
  }
  return trial;
}

PinnedMemory pinned_memory(const config::Config& config) noexcept {
  const uint64_t limit = verbs::pinnable_bytes();
  const verbs::PinPlan plan = verbs::plan_pinned(limit, config.pool_size, config.orb_size);
  return {limit, verbs::kLeastPinned, plan.pool, plan.ring};
}

}  // namespace sidestep::engine

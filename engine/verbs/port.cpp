#include "engine/verbs/port.hpp"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sidestep::engine::verbs {
namespace {

// Ranks a GID; the lowest rank comes first. RoCEv2 over IPv4 comes first, because the switches and
// firewalls of most clusters are set up for it. A link-local IPv6 address, which every port has, is
// the last resort; RoCEv1 is never routed.
int rank(const Gid& gid) noexcept {
  const bool link_local = gid.value.raw[0] == 0xfe && (gid.value.raw[1] & 0xc0) == 0x80;
  if (!gid.roce_v2) return 3;
  return gid.is_ipv4() ? 0 : link_local ? 2 : 1;
}

std::vector<Gid> usable_gids(const Library& library, const Port& port, int wanted) {
  std::vector<Gid> gids;
  // One call reads the whole table: it reports all ports and the few places in use.
  std::vector<ibv_gid_entry> entries(1024);
  const ssize_t count = library._ibv_query_gid_table(port.context, entries.data(), entries.size(),
                                                     0, sizeof(ibv_gid_entry));
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port.number || entry.gid_index > 255) continue;
    if (wanted >= 0 && entry.gid_index != static_cast<uint32_t>(wanted)) continue;
    gids.push_back(
        {entry.gid, static_cast<uint8_t>(entry.gid_index), entry.gid_type == IBV_GID_TYPE_ROCE_V2});
  }
  std::stable_sort(gids.begin(), gids.end(),
                   [](const Gid& a, const Gid& b) { return rank(a) < rank(b); });
  return gids;
}

/// Returns the index of a partition key in the port's table, or -1. Membership (the top bit) is the
/// peer's business.
int pkey_index(const Library& library, const Port& port, unsigned wanted) noexcept {
  for (int index = 0; index < port.attributes.pkey_tbl_len; ++index) {
    __be16 raw = 0;
    if (library.ibv_query_pkey(port.context, port.number, index, &raw) != 0) continue;
    const unsigned key = static_cast<unsigned>(__builtin_bswap16(raw));
    if ((key & 0x7fffU) == 0) continue;
    if (wanted == 0 || (key & 0x7fffU) == (wanted & 0x7fffU)) return index;
  }
  return -1;
}

/// Examines one port of an opened device. Returns null, or what is wrong with the port.
const char* examine(const Library& library, const PortChoice& choice, Port& port) {
  if (Library::query_port(port.context, port.number, port.attributes) != 0)
    return "can't be queried";
  if (port.attributes.state != IBV_PORT_ACTIVE) return "is not active";
  port.gids = usable_gids(library, port, choice.gid_index);
  if (port.gids.empty() && (port.is_roce() || choice.gid_index >= 0))
    return choice.gid_index >= 0 ? "has no GID at the index asked for" : "has no GID";
  const int key = pkey_index(library, port, choice.pkey);
  if (key < 0) return choice.pkey != 0 ? "is not in the partition asked for" : "has no partition";
  port.pkey_index = static_cast<uint16_t>(key);
  port.mtu = port.attributes.active_mtu;
  while (choice.mtu != 0 && port.mtu > IBV_MTU_256 && bytes_of(port.mtu) > choice.mtu)
    port.mtu = static_cast<ibv_mtu>(port.mtu - 1);
  return nullptr;
}

void complain(std::string& why, const std::string& what) {
  if (!why.empty()) why += "; ";
  why += what;
}

/// Opens one device and looks for a usable port on it.
bool open_device(const Library& library, ibv_device* device, const PortChoice& choice, Port& port,
                 std::string& why) {
  port = Port();
  port.name = library.ibv_get_device_name(device);
  errno = 0;
  port.context = library.ibv_open_device(device);
  if (port.context == nullptr) {
    complain(why, port.name + " can't be opened (" + std::strerror(errno != 0 ? errno : EIO) +
                      "): /dev/infiniband must be accessible");
    return false;
  }
  if (const int error = library.ibv_query_device(port.context, &port.device); error != 0) {
    complain(why, port.name + " can't be queried (" + std::strerror(error) + ")");
  } else {
    for (unsigned number = 1; number <= port.device.phys_port_cnt; ++number) {
      if (choice.port != 0 && number != choice.port) continue;
      port.number = static_cast<uint8_t>(number);
      const char* fault = examine(library, choice, port);
      if (fault == nullptr) return true;
      complain(why, port.name + " port " + std::to_string(number) + " " + fault);
    }
    if (choice.port > port.device.phys_port_cnt)
      complain(why, port.name + " has no port " + std::to_string(choice.port));
  }
  library.ibv_close_device(port.context);
  port.context = nullptr;
  return false;
}

}  // namespace

bool Gid::is_ipv4() const noexcept {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(value.raw, kMapped, sizeof kMapped) == 0;
}

bool Gid::fits(const ibv_gid& other, bool other_v2) const noexcept {
  const Gid peer{other, 0, other_v2};
  return roce_v2 == other_v2 && is_ipv4() == peer.is_ipv4();
}

bool open_port(const Library& library, const PortChoice& choice, Port& port, std::string& why) {
  why.clear();
  int count = 0;
  ibv_device** const devices = library.ibv_get_device_list(&count);
  bool named = false;
  bool opened = false;
  for (int i = 0; devices != nullptr && i < count && !opened; ++i) {
    if (!choice.device.empty() && choice.device != library.ibv_get_device_name(devices[i]))
      continue;
    named = true;
    opened = open_device(library, devices[i], choice, port, why);
  }
  if (devices != nullptr) library.ibv_free_device_list(devices);
  if (opened) return true;
  if (count == 0) {
    why = "this machine has no RDMA device";
  } else if (!named) {
    why = "this machine has no RDMA device named " + choice.device;
  }
  return false;
}

}  // namespace sidestep::engine::verbs

#pragma once
/// Which port of which device a node uses, and under which of its addresses.
#include <cstdint>
#include <string>
#include <vector>

#include "engine/verbs/library.hpp"

namespace sidestep::engine::verbs {

/// What a user may ask for; the defaults let Sidestep choose.
struct PortChoice {
  std::string device;  ///< empty: the first device with an active port
  unsigned port = 0;   ///< 0: the first active one
  int gid_index = -1;  ///< -1: every address that fits
  unsigned mtu = 0;    ///< bytes; 0: the port's own
  unsigned pkey = 0;   ///< 0: the first partition of the port's table
};

/// A GID of a port from which packets may be sent.
struct Gid {
  ibv_gid value;
  uint8_t index;
  bool roce_v2;
  bool is_ipv4() const noexcept;
  /// True if this GID reaches `other`: RoCEv2 to RoCEv2 of the same IP version, or neither of the
  /// two is RoCEv2.
  bool fits(const ibv_gid& other, bool other_v2) const noexcept;
};

/// An opened device and the port on it. The context belongs to whoever holds this.
struct Port {
  ibv_context* context = nullptr;
  std::string name;
  ibv_device_attr device{};
  ibv_port_attr attributes{};
  uint8_t number = 0;
  uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  std::vector<Gid> gids;  ///< best first; may be empty on InfiniBand, where the LID is enough

  bool is_roce() const noexcept { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
};

/// Opens the port that `choice` asks for. On failure it returns false, and `why` says in one
/// sentence what was looked at and why it can't be used.
bool open_port(const Library& library, const PortChoice& choice, Port& port, std::string& why);

constexpr unsigned bytes_of(ibv_mtu mtu) noexcept {
  return 128U << mtu;
}

}  // namespace sidestep::engine::verbs

#pragma once
/// What this machine offers to the verbs device, for a tool that is no node: which devices and
/// ports there are, how much memory may be pinned, and which port a node would choose. Nothing is
/// kept open.
#include <cstdint>
#include <string>
#include <vector>

#include "config/config.hpp"

namespace sidestep::engine {

struct VerbsGid {
  unsigned index;
  std::string address;  ///< as an IP address, which it is on RoCE
  const char* type;     ///< "RoCEv2", "RoCEv1" or "IB"
};

struct VerbsPort {
  unsigned number = 0;
  bool active = false;
  const char* state = "";
  const char* link_layer = "";  ///< "InfiniBand" or "Ethernet"
  unsigned mtu = 0;             ///< bytes, as negotiated
  unsigned lid = 0;             ///< on InfiniBand
  std::vector<VerbsGid> gids;
};

struct VerbsAdapter {
  std::string name;
  std::string fault;  ///< why it can't be looked at; empty if it can
  std::vector<VerbsPort> ports;
};

/// What libibverbs shows this process.
struct VerbsSurvey {
  std::string fault;  ///< why libibverbs can't be used; empty if it can
  std::vector<VerbsAdapter> adapters;
};
VerbsSurvey survey_verbs();

/// The port that the options ask for, opened as a node would and closed again.
struct VerbsTrial {
  std::string why;  ///< one sentence when there is none, or when it can't be used
  std::string adapter;
  unsigned port = 0;
  unsigned mtu = 0;            ///< bytes
  std::vector<VerbsGid> gids;  ///< best first
};
VerbsTrial try_verbs(const config::Config& config);

/// The memory that a node with these options may pin, and how it divides it. Bytes.
struct PinnedMemory {
  uint64_t limit;  ///< UINT64_MAX without one
  uint64_t least;  ///< below this the device is not used
  uint64_t pool;   ///< of receive buffers
  uint64_t ring;   ///< of each connection
};
PinnedMemory pinned_memory(const config::Config& config) noexcept;

}  // namespace sidestep::engine

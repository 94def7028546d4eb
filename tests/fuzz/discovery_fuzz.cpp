// Fuzzes datagrams, which may come from anybody. What Discovery::parse takes for a message must be
// within its bounds, and a node with a key must believe only messages that were made with it. The
// first byte says how much of the header to put right, so that the fuzzer reaches the other checks
// as well.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "engine/control/discovery.hpp"
#include "engine/control/network_path.hpp"

using namespace sidestep::engine;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// A node's discovery without its sockets.
struct Party : Discovery {
  explicit Party(const ClusterKey& key) : Discovery(0, key, refused) {}
  bool believes(const void* data, size_t size) {
    DiscoveryMessage message;
    return admit(data, size, {}, message);
  }
  Counter refused;
};

void check_key(const DiscoveryMessage& message, size_t change) {
  static const ClusterKey key("the key of the cluster", 22);
  static Party with_key(key);
  static Party without(ClusterKey{});
  static Party unusable(ClusterKey("", 0));
  // Nobody without the key can make a message that is believed.
  require(!with_key.believes(&message, sizeof message));
  require(!unusable.believes(&message, sizeof message));
  require(without.believes(&message, sizeof message) == (message.mac == Digest{}));
  DiscoveryMessage sound = message;
  key.sign(sound);
  require(with_key.believes(&sound, sizeof sound));
  require(!without.believes(&sound, sizeof sound));
  require(!unusable.believes(&sound, sizeof sound));
  // Nor can anybody change a message that is believed.
  const size_t bit = change % (8 * sizeof sound);
  reinterpret_cast<uint8_t*>(&sound)[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
  require(!with_key.believes(&sound, sizeof sound));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint8_t how = *data;
  // The buffer is exactly as long as the input, so that reading a byte too far is detected.
  std::vector<uint8_t> bytes(data + 1, data + size);
  if ((how & 1) != 0) bytes.resize(sizeof(DiscoveryMessage));
  const DiscoveryHeader sound;
  if ((how & 2) != 0 && bytes.size() >= sizeof sound.magic)
    std::memcpy(bytes.data(), &sound.magic, sizeof sound.magic);
  if ((how & 4) != 0 && bytes.size() >= offsetof(DiscoveryHeader, type))
    std::memcpy(bytes.data() + offsetof(DiscoveryHeader, version), &sound.version,
                sizeof sound.version);

  PathDatagram path;
  if (NetworkPaths::parse(bytes.data(), bytes.size(), path))
    require(bytes.size() == sizeof path && path.nid != 0 && path.version == kProtocolVersion);

  DiscoveryMessage message;
  if (!Discovery::parse(bytes.data(), bytes.size(), message)) return 0;
  require(bytes.size() == sizeof message);
  const DiscoveryHeader& header = message.header;
  require(header.magic == DiscoveryHeader::kMagic && header.version == kProtocolVersion);
  require(message.type() >= DiscoveryType::who_has && message.type() <= DiscoveryType::host_reply);
  require(header.from != 0);
  if (message.type() == DiscoveryType::owner)
    require(message.as<datagram::Owner>().answer <= static_cast<uint32_t>(OwnerAnswer::later));
  if (message.type() == DiscoveryType::failed) require(message.as<datagram::Failed>().count <= 2);
  require(std::memcmp(&message, bytes.data(), sizeof message) == 0);
  check_key(message, bytes[sizeof message - 1] | size_t{how} << 5);
  return 0;
}

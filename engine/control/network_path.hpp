#pragma once
/// Proves that two network namespaces of a host are on one network, so that the same addresses and
/// ports mean the same connection in both.
///
/// Networks that know nothing of each other may use the same addresses, and two connections in them
/// may then have the same ports. A datagram goes where the packets of a connection between the two
/// addresses go. So the node that holds the connecting end sends one, with a number that nobody can
/// guess, from the address of its end to the address of the other. The receiver says the number
/// over the link between the two nodes, and is told that it is right. Then each node knows that the
/// other is at that address, for as long as the link exists.
///
///   asker                                     asked node
///   who_has(path_port)             ->
///                                 <~          PathDatagram(number), from address to address
///                                 <-          owner: later
///   path(number, addresses)        ->         it has sent that number there: proven
///   proven                        <-          path_ok(number, addresses)
///
/// Used by the manager's thread only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>

#include "engine/base/private_fd.hpp"
#include "engine/wire/version.hpp"

namespace sidestep::engine {

/// Little-endian.
struct PathDatagram {
  static constexpr uint32_t kMagic = 0x31504453;  // "SDP1"
  uint32_t magic = kMagic;                        // 0
  uint16_t version = kProtocolVersion;            // 4
  uint16_t nid = 0;                               // 6: of the sender
  uint64_t number = 0;                            // 8
};
static_assert(sizeof(PathDatagram) == 16 && std::has_unique_object_representations_v<PathDatagram>);

class NetworkPaths {
 public:
  using Ip = std::array<uint8_t, 16>;

  /// A datagram that has arrived, or was sent.
  struct Probe {
    uint16_t nid = 0;  ///< the other node
    Ip own{};
    Ip other{};
    friend bool operator==(const Probe&, const Probe&) = default;
  };

  /// Opens the socket; negative if that fails. Later calls return the same socket.
  int open() noexcept;
  int fd() const noexcept { return socket_.get(); }
  uint16_t port() const noexcept { return port_; }

  bool is_proven(const Probe& path) const { return proven_.contains(key_of(path)); }
  /// Sends a datagram from the node `own_nid` to `port` there. A number that has not come back by
  /// the next call for this path no longer counts.
  void probe(const Probe& path, uint16_t port, uint16_t own_nid);
  /// Receives the next valid datagram and its number; nullopt if none is left.
  std::optional<Probe> receive(uint64_t& number);
  /// Called when the node `path.nid` says that it has received `number`. True if this node sent it
  /// that number on that path: then the path is proven.
  bool confirm(uint64_t number, const Probe& path);
  /// expect() notes a received number, about which the presumed sender will be asked. accept() is
  /// called when that node says that it sent it; the result is that of confirm().
  void expect(uint64_t number, const Probe& path);
  bool accept(uint64_t number, const Probe& path);
  /// Called when the link to a node is gone.
  void forget(uint16_t nid);

  /// Checks what a datagram says; `size` bytes at `data`.
  static bool parse(const void* data, size_t size, PathDatagram& datagram) noexcept;

 private:
  /// Numbers under way at most; nobody answers more.
  static constexpr size_t kMost = 1'000;
  using Key = std::tuple<uint16_t, Ip, Ip>;
  static Key key_of(const Probe& path) { return {path.nid, path.own, path.other}; }
  static void put(std::map<uint64_t, Probe>& into, uint64_t number, const Probe& path);
  bool take(std::map<uint64_t, Probe>& from, uint64_t number, const Probe& path);

  PrivateFd socket_;
  uint16_t port_ = 0;
  std::map<uint64_t, Probe> sent_;
  std::map<uint64_t, Probe> expected_;
  std::set<Key> proven_;
};

}  // namespace sidestep::engine

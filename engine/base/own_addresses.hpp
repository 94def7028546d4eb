#pragma once
/// The addresses of this host, as far as this network namespace knows them (getifaddrs(3)).
#include <array>
#include <cstdint>
#include <set>

#include "engine/base/address.hpp"

namespace sidestep::engine {

/// Not thread-safe. May throw std::bad_alloc.
class OwnAddresses {
 public:
  /// `now`: now_ns(). The list is read again when it is older than a few seconds: addresses come
  /// and go.
  bool contains(const Address& address, uint64_t now);

 private:
  std::set<std::array<uint8_t, 16>> addresses_;
  uint64_t read_at_ = 0;  // 0: never
};

}  // namespace sidestep::engine

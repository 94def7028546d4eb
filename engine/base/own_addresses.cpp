#include "engine/base/own_addresses.hpp"

#include <ifaddrs.h>

namespace sidestep::engine {

bool OwnAddresses::contains(const Address& address, uint64_t now) {
  constexpr uint64_t kFresh = 5'000'000'000;
  if (read_at_ == 0 || now > read_at_ + kFresh) {
    read_at_ = now;
    addresses_.clear();
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) return false;
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr) continue;
      if (const auto own = to_address(entry->ifa_addr)) addresses_.insert(own->ip);
    }
    freeifaddrs(list);
  }
  return addresses_.count(address.ip) != 0;
}

}  // namespace sidestep::engine

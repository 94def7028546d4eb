#include "engine/base/address.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <iterator>

namespace sidestep::engine {
namespace {
constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
bool is_mapped(const Address& address) noexcept {
  return std::memcmp(address.ip.data(), kMappedPrefix, sizeof kMappedPrefix) == 0;
}

struct IpText {
  char text[INET6_ADDRSTRLEN] = "";
};
IpText ip_of(const Address& address) noexcept {
  IpText ip;
  if (is_mapped(address)) {
    inet_ntop(AF_INET, address.ip.data() + sizeof kMappedPrefix, ip.text, sizeof ip.text);
  } else {
    inet_ntop(AF_INET6, address.ip.data(), ip.text, sizeof ip.text);
  }
  return ip;
}
}  // namespace

std::optional<Address> to_address(const sockaddr* address) noexcept {
  Address result;
  if (address->sa_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, address, sizeof in);
    std::memcpy(result.ip.data(), kMappedPrefix, sizeof kMappedPrefix);
    std::memcpy(result.ip.data() + sizeof kMappedPrefix, &in.sin_addr, sizeof in.sin_addr);
    result.port = ntohs(in.sin_port);
    return result;
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 in6{};
    std::memcpy(&in6, address, sizeof in6);
    std::memcpy(result.ip.data(), &in6.sin6_addr, result.ip.size());
    result.port = ntohs(in6.sin6_port);
    return result;
  }
  return std::nullopt;
}

std::string ip_text(const Address& address) {
  return ip_of(address).text;
}

AddressText text_of(const Address& address) noexcept {
  AddressText result;
  const bool brackets = !is_mapped(address);
  const IpText ip = ip_of(address);
  char* at = result.text;
  if (brackets) *at++ = '[';
  at = std::copy_n(ip.text, std::strlen(ip.text), at);
  if (brackets) *at++ = ']';
  *at++ = ':';
  at = std::to_chars(at, std::end(result.text), address.port).ptr;
  *at = '\0';
  return result;
}

std::string to_string(const Address& address) {
  return text_of(address).text;
}

bool is_loopback(const Address& address) noexcept {
  if (is_mapped(address)) return address.ip[12] == 127;
  static constexpr uint8_t kLoopback[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  return std::memcmp(address.ip.data(), kLoopback, sizeof kLoopback) == 0;
}

bool may_lead_away(const Tuple& tuple) noexcept {
  return !is_loopback(tuple.remote) && tuple.local.ip != tuple.remote.ip;
}

}  // namespace sidestep::engine

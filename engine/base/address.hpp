#pragma once
/// TCP addresses in one form: 16 bytes of IPv6, IPv4 as ::ffff:a.b.c.d, and a port in host order. A
/// JVM's AF_INET6 socket and a C program's AF_INET socket on one connection then compare equal.
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "engine/base/hash.hpp"

namespace sidestep::engine {

struct Address {
  std::array<uint8_t, 16> ip{};
  uint16_t port = 0;
  uint16_t reserved = 0;
  friend bool operator==(const Address&, const Address&) = default;
};

/// The two ends of a TCP connection as one of them sees it.
struct Tuple {
  Address local;
  Address remote;
  Tuple mirrored() const noexcept { return {remote, local}; }
  friend bool operator==(const Tuple&, const Tuple&) = default;
};

/// nullopt for anything but AF_INET and AF_INET6.
std::optional<Address> to_address(const sockaddr* address) noexcept;
/// An address as text that needs no memory, for code that may not throw.
struct AddressText {
  char text[INET6_ADDRSTRLEN + sizeof "[]:65535"];
  const char* c_str() const noexcept { return text; }
};
/// "10.0.0.1:80" or "[fe80::1]:80".
AddressText text_of(const Address& address) noexcept;
std::string to_string(const Address& address);
/// The same without the port.
std::string ip_text(const Address& address);
bool is_loopback(const Address& address) noexcept;
/// True if the two ends may be on different hosts; false if they are on the same one.
bool may_lead_away(const Tuple& tuple) noexcept;

struct TupleHash {
  size_t operator()(const Tuple& tuple) const noexcept {
    uint64_t words[sizeof(Tuple) / sizeof(uint64_t)];
    static_assert(sizeof(Tuple) % sizeof(uint64_t) == 0);
    std::memcpy(words, &tuple, sizeof tuple);
    return hash_words(words, 0x9e3779b97f4a7c15U);
  }
};

}  // namespace sidestep::engine

#pragma once
/// A connection between two nodes that is being made.
#include <memory>

#include "engine/device/device.hpp"
#include "engine/wire/endpoint_address.hpp"

namespace sidestep::engine {

/// What one side of a connection gives to the other: where its endpoint is and, on one host, its
/// memory and its doorbell.
struct Offer {
  EndpointAddress address;
  int memory_fd = -1;
  int doorbell_fd = -1;
  /// Set in a peer's offer that has no doorbell: another endpoint to the same node, whose doorbell
  /// also serves this one.
  const Endpoint* sibling = nullptr;
};

/// A connection that is being made: this side's half exists, and it awaits the peer's offer.
class HalfOpen {
 public:
  virtual ~HalfOpen() = default;
  /// The descriptors stay owned by this object.
  virtual Offer offer() const noexcept = 0;
  /// Joins the peer's half. Takes ownership of its descriptors in every case. Null if it is
  /// unusable (logged).
  virtual std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept = 0;
};

}  // namespace sidestep::engine

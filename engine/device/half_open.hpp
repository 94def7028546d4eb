#pragma once
/// A connection between two nodes that is being made.
#include <memory>

#include "engine/device/device.hpp"
#include "engine/wire/endpoint_address.hpp"

namespace sidestep::engine {

/// What one side of a connection hands to the other: where its endpoint is and, on one host, its
/// memory and its doorbell.
struct Offer {
  EndpointAddress address;
  int memory_fd = -1;
  int doorbell_fd = -1;
  /// Of the peer's offer, where it has no doorbell: another endpoint to the same node, whose
  /// doorbell is this one's as well.
  const Endpoint* sibling = nullptr;
};

/// A connection that is being made: this side's half exists, the peer's offer is awaited.
class HalfOpen {
 public:
  virtual ~HalfOpen() = default;
  /// Descriptors stay owned by this object.
  virtual Offer offer() const noexcept = 0;
  /// Joins the peer's half. Takes ownership of its descriptors in every case; null when it is
  /// unusable (logged).
  virtual std::unique_ptr<Endpoint> complete(const Offer& peer) noexcept = 0;
};

}  // namespace sidestep::engine

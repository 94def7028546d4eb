#pragma once
/// Limits how many unsigned datagrams a node listens to: token buckets, one for each source and one
/// for all sources together.
///
/// A bucket is one number: the time at which it would be full again if nothing more came (the
/// "generic cell rate algorithm", ITU-T I.371). Sources share buckets by a hash that nobody outside
/// can compute; the number of buckets is fixed, however many addresses a sender invents. Not
/// thread-safe: used by the manager only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/base/hash.hpp"

namespace sidestep::engine {

class RateLimit {
 public:
  using Ip = std::array<uint8_t, 16>;
  /// After a failure a host may ask for all of its streams at once.
  static constexpr uint64_t kBurst = 16'000;
  static constexpr uint64_t kPerSecond = 1'000;
  static constexpr uint64_t kForAll = 2;  // times as much from all sources together

  explicit RateLimit(uint64_t seed) noexcept : seed_(seed) {}

  /// True if the node listens to one more datagram from `source`. `now`: nanoseconds of now_ns().
  bool allows(const Ip& source, uint64_t now) noexcept {
    constexpr uint64_t kInterval = 1'000'000'000 / kPerSecond;
    uint64_t& own = full_at_[hash(source) % kBuckets];
    constexpr uint64_t kLatest = kBurst * kInterval;
    if (own >= now + kLatest || all_full_at_ >= now + kLatest) return false;
    take(own, now, kInterval);
    take(all_full_at_, now, kInterval / kForAll);
    return true;
  }

 private:
  static constexpr size_t kBuckets = 1024;

  static void take(uint64_t& full_at, uint64_t now, uint64_t interval) noexcept {
    full_at = (full_at > now ? full_at : now) + interval;
  }
  uint64_t hash(const Ip& source) const noexcept {
    uint64_t words[2];
    std::memcpy(words, source.data(), sizeof words);
    // The owner of an IPv6 network has all addresses in it, so only the first half counts. A mapped
    // IPv4 address is in the second half.
    if (words[0] != 0) words[1] = 0;
    return hash_words(words, seed_);
  }

  uint64_t seed_;
  uint64_t all_full_at_ = 0;
  std::array<uint64_t, kBuckets> full_at_{};
};

}  // namespace sidestep::engine

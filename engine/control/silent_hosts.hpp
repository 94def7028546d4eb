#pragma once
/// Hosts where nobody answered, which are not asked again for a while.
///
/// A server on the internet may have a million clients, none of which has Sidestep, so this class
/// remembers a bounded number of them. A host that it has forgotten is asked once more, which costs
/// a few datagrams. Not thread-safe: used by the manager only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

namespace sidestep::engine {

class SilentHosts {
 public:
  using Ip = std::array<uint8_t, 16>;
  static constexpr size_t kMost = 4096;

  /// Notes that nobody answers on `host`; believed until `until` (nanoseconds of now_ns()).
  void add(const Ip& host, uint64_t now, uint64_t until) {
    forget_old(now);
    if (until_.size() >= kMost) forget_oldest();
    until_[host] = until;
    order_.push_back({host, until});
  }
  bool contains(const Ip& host, uint64_t now) const noexcept {
    const auto found = until_.find(host);
    return found != until_.end() && found->second > now;
  }
  /// Called when somebody answers there after all.
  void remove(const Ip& host) noexcept { until_.erase(host); }

  size_t size() const noexcept { return until_.size(); }

 private:
  struct Entry {
    Ip host;
    uint64_t until;
  };
  void forget_oldest() noexcept {
    if (order_.empty()) return;
    const auto found = until_.find(order_.front().host);
    // The host may have been removed since, or added again.
    if (found != until_.end() && found->second == order_.front().until) until_.erase(found);
    order_.pop_front();
  }
  void forget_old(uint64_t now) noexcept {
    while (!order_.empty() && (order_.front().until <= now || order_.size() >= 2 * kMost))
      forget_oldest();
  }

  std::map<Ip, uint64_t> until_;
  std::deque<Entry> order_;  // in the order in which they were added
};

}  // namespace sidestep::engine

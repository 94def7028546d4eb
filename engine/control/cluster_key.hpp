#pragma once
/// The key that the hosts of a cluster share (SIDESTEP_KEY_FILE), and the proof that it gives to
/// the datagrams between them: an HMAC-SHA256 over everything in a DiscoveryMessage before its
/// field `mac`.
///
/// The key is the SHA-256 of all bytes of the file, including a line end. Without a key the field
/// is zero. A datagram whose field is not zero comes from a host that has a key; this node refuses
/// it, as that host would refuse this node's. An unusable key is not the same as no key: it signs
/// nothing and accepts nothing, so that a slip in it never opens a node to hosts without the key.
/// A missing key is not the same as no key either: unless somebody has said that hosts may do
/// without one (SIDESTEP_ALLOW_NO_KEY), there are no other hosts.
#include <string>

#include "config/config.hpp"
#include "engine/base/message_auth.hpp"
#include "engine/wire/discovery_message.hpp"

namespace sidestep::engine {

class ClusterKey {
 public:
  static constexpr size_t kShortest = 16;
  static constexpr size_t kLongest = 4096;

  enum class State : uint8_t {
    none,  ///< and none is required
    usable,
    unusable,
    missing  ///< only hosts with a key are joined, and there is none
  };

  ClusterKey() noexcept = default;
  /// Makes a key of `size` bytes at `data`; unusable if there are too few or too many.
  ClusterKey(const void* data, size_t size) noexcept;

  /// Reads the file; an empty path gives no key. If anything is wrong with the file, `why` says
  /// what, worded to follow "can't be used: ". Throws nothing but std::bad_alloc.
  static ClusterKey read(const std::string& path, std::string& why);
  /// Loads the key that `config` asks for. Logs what is wrong with it.
  static ClusterKey load(const config::Config& config) noexcept;
  static ClusterKey missing() noexcept;
  /// Says what a key file must be, worded to follow "it must be ".
  static const char* allowed() noexcept;

  State state() const noexcept { return state_; }
  /// True if other hosts may be asked and answered.
  bool lets_talk() const noexcept { return state_ == State::none || state_ == State::usable; }
  /// Sets the field `mac`. Call it only if lets_talk().
  void sign(DiscoveryMessage& message) const noexcept;
  /// True if somebody with the same key made this message and nobody has changed it.
  bool verify(const DiscoveryMessage& message) const noexcept;

 private:
  Digest mac_of(const DiscoveryMessage& message) const noexcept;

  State state_ = State::none;
  Digest key_{};
};

}  // namespace sidestep::engine

#pragma once
/// The key that the hosts of a cluster share (SIDESTEP_KEY_FILE), and the proof that it gives to
/// the datagrams between them: an HMAC-SHA256 over all of a DiscoveryMessage before its field
/// `mac`.
///
/// The key is the SHA-256 of the file's bytes, each of them, a line end as well. Without a key the
/// field is zero, and a datagram in which it is not comes from a host that has one: it is refused
/// here as this node's would be there. A key that can't be used is not the same as none: it signs
/// nothing and takes nothing, so that a slip in it never opens a node to hosts without the key.
/// Nor is a key that is missing: where nobody has said that hosts may do without
/// (SIDESTEP_ALLOW_NO_KEY), there are no other hosts.
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
    none,  ///< and none is asked for
    usable,
    unusable,
    missing  ///< only hosts with a key are joined, and there is none
  };

  ClusterKey() noexcept = default;
  /// Of `size` bytes at `data`; unusable if they are too few or too many.
  ClusterKey(const void* data, size_t size) noexcept;

  /// Reads the file, or none where the path is empty. What is wrong with it, if anything, comes in
  /// `why`, to follow "can't be used: ". May throw std::bad_alloc only.
  static ClusterKey read(const std::string& path, std::string& why);
  /// The one that `config` asks for. The log tells what is wrong with it.
  static ClusterKey load(const config::Config& config) noexcept;
  static ClusterKey missing() noexcept;
  /// What a file must be, to follow "it must be ".
  static const char* allowed() noexcept;

  State state() const noexcept { return state_; }
  /// Other hosts may be asked and answered.
  bool lets_talk() const noexcept { return state_ == State::none || state_ == State::usable; }
  /// Sets the field `mac`. Only where lets_talk().
  void sign(DiscoveryMessage& message) const noexcept;
  /// Whether somebody with the same key has made this message, and nobody has changed it.
  bool verify(const DiscoveryMessage& message) const noexcept;

 private:
  Digest mac_of(const DiscoveryMessage& message) const noexcept;

  State state_ = State::none;
  Digest key_{};
};

}  // namespace sidestep::engine

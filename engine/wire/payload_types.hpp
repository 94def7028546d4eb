#pragma once
/// The payloads of a family of messages: each type of message has a struct of its own, which says
/// by `kType` which one it is. What is common to all messages of a family is in its header.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace sidestep::engine {

/// A struct that can be a payload. There are no gaps in it, because they would carry what happens
/// to lie in the sender's memory.
template <typename P>
concept Payload = requires {
  P::kType;
}
&&std::is_trivially_copyable_v<P> &&
    (std::is_empty_v<P> || std::has_unique_object_representations_v<P>);

/// The bytes that it takes in a message.
template <Payload P>
inline constexpr size_t kPayloadSize = std::is_empty_v<P> ? 0 : sizeof(P);

template <Payload... P>
struct PayloadTypes {
  static constexpr size_t kLargest = std::max({kPayloadSize<P>...});
  static constexpr size_t kUnknown = SIZE_MAX;

  /// Returns the bytes of the payload of such a message; kUnknown if there is no such type.
  static constexpr size_t size_of(uint16_t type) noexcept {
    size_t size = kUnknown;
    ((type == static_cast<uint16_t>(P::kType) ? static_cast<void>(size = kPayloadSize<P>)
                                              : static_cast<void>(0)),
     ...);
    return size;
  }
};

}  // namespace sidestep::engine
